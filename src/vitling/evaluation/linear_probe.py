"""The linear probe of DINO and EsViT: SGD on frozen features, with many learning rates trained at once.

As released (EsViT): momentum 0.9, no weight decay, weights from N(0, 0.01), the rate on a cosine down to 0 that moves
once an epoch, for each 256 images of a batch. There one rate is tried a run; here all of them see the same batches and
are one product of tensors; the best on validation at the last epoch (of equal ones that of the lowest loss) is
trained again on train and validation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.metrics import log_loss
from vitling.evaluation.probe_features import compute_augmented_features
from vitling.keys import make_rng
from vitling.views.config import Plan

MOMENTUM, DEVIATION = 0.9, 0.01

Scorer = Callable[[Tensor, Tensor], float]


class Source(Protocol):
    """Labelled features, by rows."""

    labels: Tensor

    def rows(self, rows: np.ndarray, epoch: int) -> Tensor: ...


@dataclass
class Cached:
    """The same features in every epoch."""

    features: Tensor
    labels: Tensor

    def rows(self, rows: np.ndarray, epoch: int) -> Tensor:
        return self.features[torch.from_numpy(rows).to(self.features.device)]


@dataclass
class Augmented:
    """New views in every epoch, of the images of one store after the other."""

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
                ids, seed = rows[at] - first, self.seed + number  # an id means another image in another store
                of_store = compute_augmented_features(self.backbone, store, ids, self.plan, seed, epoch, self.blocks)
                found.append((at, of_store))
            first += len(store)
        order = np.argsort(np.concatenate([at for at, _ in found]))
        return torch.cat([part for _, part in found])[torch.from_numpy(order).to(found[0][1].device)]


class Linear(NamedTuple):
    """Several classifiers: weights [L, D, C] and biases [L, C]."""

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """[L, N, C]."""
        return torch.einsum("nd,ldc->lnc", features, self.weight) + self.bias[:, None]


@dataclass
class LinearProbe:
    classifier: Linear  # L = 1
    rate: float
    score: float  # on validation
    scores: dict[float, float | None]  # of every rate; None where it diverged

    def logits(self, features: Tensor) -> Tensor:
        return self.classifier.logits(features)[0]


def probe(
    train: Source,
    validation: tuple[Tensor, Tensor],
    both: Source,
    classes: int,
    score: Scorer,
    rates: Sequence[float],
    epochs: int,
    batch: int,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> LinearProbe:
    """The rate that is best on `validation` (features and labels), trained again on `both`."""
    features, labels = validation
    width = features.shape[1]
    tried = train_linear(train, width, classes, rates, epochs, batch, seed, on_progress)
    finite = {rate: logits for rate, logits in zip(rates, tried.logits(features)) if logits.isfinite().all()}
    if not finite:
        raise UserError("The linear probe diverged at every rate. Give smaller ones: --linear.lr 1e-5 1e-4")
    scores = {rate: score(finite[rate], labels) if rate in finite else None for rate in rates}
    losses = {rate: log_loss(logits, labels) for rate, logits in finite.items()}
    best = max(finite, key=lambda rate: (scores[rate], -losses[rate]))  # few images have many ties
    final = train_linear(both, width, classes, [best], epochs, batch, seed, lambda done: on_progress(epochs + done))
    if not (final.weight.isfinite().all() and final.bias.isfinite().all()):
        raise UserError(f"The linear probe diverged on train and validation. Leave out --linear.lr {best:g}.")
    return LinearProbe(final, best, score(finite[best], labels), scores)


@torch.no_grad()
def train_linear(
    source: Source,
    width: int,
    classes: int,
    rates: Sequence[float],
    epochs: int,
    batch: int,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Linear:
    """One classifier for each rate; they start alike and see the same batches."""
    device = source.labels.device
    peak = torch.tensor(rates, device=device)[:, None, None] * batch / 256
    weights = _start(width, classes, seed).to(device).repeat(len(rates), 1, 1)  # the bias is the last row
    speed = torch.zeros_like(weights)
    for epoch in range(epochs):
        rate = peak * (1 + math.cos(math.pi * epoch / epochs)) / 2
        for rows in _batches(len(source.labels), batch, seed, epoch):
            features = _with_one(source.rows(rows, epoch).float())
            labels = source.labels[torch.from_numpy(rows).to(device)]
            logits = torch.einsum("nd,ldc->lnc", features, weights)
            speed.mul_(MOMENTUM).add_(torch.einsum("nd,lnc->ldc", features, errors(logits, labels)))
            weights -= rate * speed
        on_progress(epoch + 1)
    return Linear(weights[:, :-1], weights[:, -1])


def errors(logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the mean cross entropy by the logits [L, N, C]; of several labels, of the mean binary one."""
    if labels.ndim == 2:
        return (logits.sigmoid() - labels.to(logits)) / labels.numel()
    wanted = torch.nn.functional.one_hot(labels, logits.shape[2]).to(logits)
    return (logits.softmax(dim=2) - wanted) / len(labels)


def _start(width: int, classes: int, seed: int) -> Tensor:
    drawn = make_rng("linear probe", seed).normal(0, DEVIATION, (width, classes))
    return _with_zeros(torch.from_numpy(drawn).float())


def _with_zeros(weight: Tensor) -> Tensor:
    return torch.cat([weight, weight.new_zeros(1, weight.shape[1])])


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def _batches(n: int, batch: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
    order = make_rng("linear probe order", seed, epoch).permutation(n)
    for start in range(0, n, batch):
        yield order[start : start + batch]
