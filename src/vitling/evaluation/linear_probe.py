"""The linear probe of DINO and EsViT: SGD on frozen features, with many learning rates trained at once.

As in the code of EsViT: momentum 0.9, no weight decay, weights from N(0, 0.01), a learning rate per 256 images of a
batch, on a cosine to 0 that is updated once an epoch. EsViT tries one learning rate per run; here all are trained at
once on the same batches, as one tensor product. The best on validation at the last epoch (of equal ones that with the
lowest loss) is trained again on train and validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.config import LinearConfig
from vitling.evaluation.metrics import log_loss
from vitling.evaluation.probe_features import compute_augmented_features
from vitling.keys import make_rng
from vitling.views.plan import Plan

MOMENTUM, INIT_STD = 0.9, 0.01

Scorer = Callable[[Tensor, Tensor], float]


class FeatureSource(Protocol):
    """Labelled features that are fetched by row."""

    labels: Tensor

    def rows(self, rows: np.ndarray, epoch: int) -> Tensor: ...


@dataclass
class CachedFeatures:
    """Features that are the same in every epoch."""

    features: Tensor
    labels: Tensor

    def rows(self, rows: np.ndarray, epoch: int) -> Tensor:
        return self.features[torch.from_numpy(rows).to(self.features.device)]


@dataclass
class AugmentedFeatures:
    """Features of new random views in every epoch, of the images of several stores in order."""

    backbone: Backbone
    stores: Sequence[Store]
    labels: Tensor
    plan: Plan
    blocks: int
    seed: int

    def rows(self, rows: np.ndarray, epoch: int) -> Tensor:
        found: list[tuple[np.ndarray, Tensor]] = []
        first = 0
        for number, store in enumerate(self.stores):
            at = np.flatnonzero((rows >= first) & (rows < first + len(store)))
            if len(at):
                ids, seed = rows[at] - first, self.seed + number  # the same id is another image in another store
                of_store = compute_augmented_features(self.backbone, store, ids, self.plan, seed, epoch, self.blocks)
                found.append((at, of_store))
            first += len(store)
        order = np.argsort(np.concatenate([at for at, _ in found]))
        return torch.cat([part for _, part in found])[torch.from_numpy(order).to(found[0][1].device)]


class LinearClassifiers(NamedTuple):
    """Linear classifiers, one per learning rate: weights [L, D, C] and biases [L, C]."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Compute logits [L, N, C]."""
        return torch.einsum("nd,ldc->lnc", features, self.weight) + self.bias[:, None]


@dataclass
class LinearProbe:
    classifier: LinearClassifiers  # L = 1
    lr: float
    score: float  # on validation
    scores: dict[float, float | None]  # of every learning rate; None if it diverged

    def logits(self, features: Tensor) -> Tensor:
        return self.classifier.logits(features)[0]


def fit_probe(
    train: FeatureSource,
    validation: tuple[Tensor, Tensor],
    both: FeatureSource,
    classes: int,
    score: Scorer,
    config: LinearConfig,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> LinearProbe:
    """Choose the learning rate that is best on `validation` (features and labels), and train with it on `both`."""
    features, labels = validation
    width, epochs = features.shape[1], config.epochs
    tried = train_linear(train, width, classes, config, seed, on_progress)
    finite = {lr: logits for lr, logits in zip(config.lr, tried.logits(features)) if logits.isfinite().all()}
    if not finite:
        raise UserError("The linear probe diverged at every learning rate. Use --linear.lr 1e-5 1e-4 or smaller.")
    scores = {lr: score(finite[lr], labels) if lr in finite else None for lr in config.lr}
    losses = {lr: log_loss(logits, labels) for lr, logits in finite.items()}
    best = max(finite, key=lambda lr: (scores[lr], -losses[lr]))  # ties are common with few images
    alone = replace(config, lr=(best,))
    final = train_linear(both, width, classes, alone, seed, lambda done: on_progress(epochs + done))
    if not (final.weight.isfinite().all() and final.bias.isfinite().all()):
        raise UserError(f"The linear probe diverged on train and validation; leave {best:g} out of --linear.lr.")
    return LinearProbe(final, best, score(finite[best], labels), scores)


@torch.no_grad()
def train_linear(
    source: FeatureSource,
    width: int,
    classes: int,
    config: LinearConfig,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> LinearClassifiers:
    """Train one classifier for each learning rate, all from the same weights and on the same batches."""
    device, epochs = source.labels.device, config.epochs
    peak = torch.tensor(config.lr, device=device)[:, None, None] * config.batch / 256
    weights = _draw_weights(width, classes, seed).to(device).repeat(len(config.lr), 1, 1)  # the last row is the bias
    velocity = torch.zeros_like(weights)
    for epoch in range(epochs):
        lr = peak * (1 + math.cos(math.pi * epoch / epochs)) / 2
        for rows in _iterate_batches(len(source.labels), config.batch, seed, epoch):
            features = F.pad(source.rows(rows, epoch).float(), (0, 1), value=1.0)
            labels = source.labels[torch.from_numpy(rows).to(device)]
            logits = torch.einsum("nd,ldc->lnc", features, weights)
            velocity.mul_(MOMENTUM).add_(torch.einsum("nd,lnc->ldc", features, logit_gradient(logits, labels)))
            weights -= lr * velocity
        on_progress(epoch + 1)
    return LinearClassifiers(weights[:, :-1], weights[:, -1])


def logit_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the gradient of the mean cross entropy (for several labels, binary) with respect to logits [L, N, C]."""
    if labels.ndim == 2:
        return (logits.sigmoid() - labels.to(logits)) / labels.numel()
    target = F.one_hot(labels, logits.shape[2]).to(logits)
    return (logits.softmax(dim=2) - target) / len(labels)


def _draw_weights(width: int, classes: int, seed: int) -> Tensor:
    drawn = make_rng("linear probe", seed).normal(0, INIT_STD, (width, classes))
    return torch.cat([torch.from_numpy(drawn).float(), torch.zeros(1, classes)])


def _iterate_batches(n: int, batch: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    order = make_rng("linear probe order", seed, epoch).permutation(n)
    for start in range(0, n, batch):
        yield order[start : start + batch]
