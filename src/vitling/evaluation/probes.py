"""The probes of `evaluate --with`: each chooses its setting on validation and is evaluated on a third split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitling.console import Log
from vitling.data.store import Store
from vitling.evaluation import few_shot, linear_probe, logistic
from vitling.evaluation.config import KS, ProbesConfig
from vitling.evaluation.knn import knn_votes
from vitling.evaluation.metrics import METRICS, resolve_metric, summarise
from vitling.evaluation.model import Model
from vitling.evaluation.probe_features import FrozenFeatures
from vitling.metric_names import MetricFlag
from vitling.views.plan import Group, Plan, Policy

EPSILON = 1e-6  # smallest fraction of votes, whose logarithm is a logit
AUGMENTATION = Policy(filter="bilinear")  # EsViT's: crops of scale 0.08 to 1, flip
LOGISTIC_FITS = 16  # at most 15 in the search, and the last


class SplitFeatures(NamedTuple):
    store: Store | None  # None if only the features are kept, which then cannot be augmented
    frozen: FrozenFeatures
    labels: Tensor


@dataclass
class ProbeTask:
    """Features of three splits from a frozen network, and how probes on them are scored."""

    model: Model
    settings: ProbesConfig
    class_names: tuple[str, ...]
    parts: dict[str, SplitFeatures]  # train, validation, and evaluated: the split that probes are evaluated on

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def multi_label(self) -> bool:
        return self.parts["train"].labels.ndim == 2

    @property
    def metric(self) -> MetricFlag:
        return resolve_metric(self.settings.metric, self.multi_label)

    @property
    def score(self) -> Callable[[Tensor, Tensor], float]:
        return METRICS[self.metric]

    def pooled(self, *names: str) -> tuple[Tensor, Tensor]:
        """Join the pooled features and the labels of these parts."""
        parts = [self.parts[name] for name in names]
        return torch.cat([part.frozen.pooled for part in parts]), torch.cat([part.labels for part in parts])

    def evaluate(self, logits: Tensor) -> dict[str, Any]:
        """Compute the chosen metric and all others on the evaluation split."""
        labels, logits = self.parts["evaluated"].labels, logits.float()
        metrics = summarise(logits.cpu(), labels.cpu(), self.class_names)
        return {"value": self.score(logits, labels), "metrics": metrics}


def default_ks(images: int) -> tuple[int, ...]:
    """Return EsViT's numbers of neighbours, up to the number of images."""
    return tuple(k for k in KS if k <= images) or (images,)


def count_blocks(model: Model, settings: ProbesConfig) -> int:
    """Return how many blocks the linear probe uses."""
    return min(settings.linear.blocks, len(model.backbone.blocks()))


def run_knn(task: ProbeTask, log: Log) -> dict[str, Any]:
    held_out, labels = task.pooled("validation")
    validation = {k: task.score(v, labels) for k, v in _knn_logits(task, task.pooled("train"), held_out).items()}
    best = max(validation, key=lambda k: (validation[k], -k))
    queries, truth = task.pooled("evaluated")
    logits = _knn_logits(task, task.pooled("train", "validation"), queries)
    each = {str(k): {"validation": validation[k], "value": task.score(logits[k], truth)} for k in task.settings.knn.k}
    return {"chosen": {"k": best}, "validation": validation[best], **task.evaluate(logits[best]), "each_k": each}


def _knn_logits(task: ProbeTask, bank: tuple[Tensor, Tensor], queries: Tensor) -> dict[int, Tensor]:
    config = task.settings.knn
    votes = knn_votes(*bank, queries, config.k, task.classes, config.temperature)
    return {k: v.logit(EPSILON) if task.multi_label else v.clamp_min(EPSILON).log() for k, v in votes.items()}


def run_linear(task: ProbeTask, log: Log) -> dict[str, Any]:
    config = task.settings.linear
    train, validation = task.parts["train"], task.parts["validation"]
    with log.progress("Linear probe", 2 * config.epochs) as progress:
        held_out, both = (validation.frozen.blocks, validation.labels), _make_source(task, [train, validation])
        found = linear_probe.fit_probe(
            _make_source(task, [train]), held_out, both, task.classes, task.score, config, task.settings.seed, progress
        )
    if len(config.lr) > 1 and found.lr in (min(config.lr), max(config.lr)):
        end = "largest" if found.lr == max(config.lr) else "smallest"
        log.info(
            f"Linear probe: the best learning rate, {found.lr:g}, is the {end} of --linear.lr; try values beyond it."
        )
    return {
        "chosen": {"lr": found.lr},
        "validation": found.score,
        **task.evaluate(found.logits(task.parts["evaluated"].frozen.blocks)),
        "width": train.frozen.blocks.shape[1],
        "each_lr": {f"{lr:g}": value for lr, value in found.scores.items()},
    }


def _make_source(task: ProbeTask, parts: Sequence[SplitFeatures]) -> linear_probe.FeatureSource:
    labels = torch.cat([part.labels for part in parts])
    if not task.settings.linear.augment:
        return linear_probe.CachedFeatures(torch.cat([part.frozen.blocks for part in parts]), labels)
    plan = Plan((Group(task.model.meta.size, policy=AUGMENTATION),))
    stores = [part.store for part in parts if part.store]
    blocks = count_blocks(task.model, task.settings)
    return linear_probe.AugmentedFeatures(task.model.backbone, stores, labels, plan, blocks, task.settings.seed)


def run_logistic(task: ProbeTask, log: Log) -> dict[str, Any]:
    backend = task.settings.logistic.backend
    train, validation, evaluated = (
        _to_float64_device(task.pooled(name)) for name in ("train", "validation", "evaluated")
    )
    with log.progress("Logistic probe", LOGISTIC_FITS) as progress:
        found = logistic.fit_probe(train, validation, task.classes, task.score, backend, progress)
    if found.not_converged:
        count, tried = len(found.not_converged), len(found.scores)
        log.info(f"L-BFGS stopped at {logistic.ITERATIONS:,} iterations for {count} of {tried} C, as in the papers.")
    logits = found.fit.logits(evaluated[0]).to(task.parts["evaluated"].labels.device, torch.float32)
    return {
        "chosen": {"C": found.C},
        "validation": found.score,
        **task.evaluate(logits),
        "backend": backend,
        "each_C": {f"{C:.4g}": value for C, value in found.scores.items()},
        "iterations": {f"{C:.4g}": n for C, n in found.iterations.items()},
        "not_converged": found.not_converged,
        "converged": found.fit.converged,
    }


def run_few_shot(task: ProbeTask, log: Log) -> dict[str, Any]:
    settings, config = task.settings, task.settings.few_shot
    bank, evaluated = (_to_float64_device(task.pooled(*names)) for names in (("train", "validation"), ("evaluated",)))
    with log.progress("Few-shot curves", config.draws) as progress:
        curves = few_shot.measure_few_shot(
            *bank, *evaluated, task.classes, task.score, config, settings.seed, settings.logistic.backend, progress
        )
    by_shots = {name: {str(n): values for n, values in curve.items()} for name, curve in curves.items()}
    return {"draws": config.draws, **by_shots}


def _to_float64_device(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Move features and labels to the host unless they are on a CUDA device: L-BFGS needs float64."""
    features, labels = part
    return (features, labels) if features.device.type == "cuda" else (features.cpu(), labels.cpu())


PROBES: dict[str, Callable[[ProbeTask, Log], dict[str, Any]]] = {
    "knn": run_knn,
    "linear": run_linear,
    "logistic": run_logistic,
    "few-shot": run_few_shot,
}
