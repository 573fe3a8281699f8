"""Logits of a whole split, and the watcher that validates a supervised run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from vitling.data.store import Store
from vitling.evaluation import metrics
from vitling.evaluation.features import iterate_views
from vitling.metric_names import primary_metric
from vitling.objectives.moments import Moment

Classify = Callable[[Tensor], Tensor]  # normalised images -> logits


@torch.inference_mode()
def compute_logits(
    classify: Classify,
    store: Store,
    size: int,
    crop_fraction: float,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Compute the logits of all images of the store, in order, on the host."""
    parts: list[Tensor] = []
    for images in iterate_views(store, size, crop_fraction):
        parts.append(classify(images).float().cpu())
        on_progress(sum(map(len, parts)))
    return torch.cat(parts)


@dataclass
class ValidationWatcher:
    """Watcher of supervised training: val/top1 (val/mean_average_precision for several labels) and val/log_loss."""

    store: Store
    size: int
    crop_fraction: float
    every: int = 1

    def __call__(self, moment: Moment) -> dict[str, float]:
        logits = compute_logits(cast(Classify, moment.objective.logits), self.store, self.size, self.crop_fraction)
        labels = get_labels(self.store)
        score = metrics.mean_average_precision if labels.ndim == 2 else metrics.top1
        return {self.metric: score(logits, labels), "val/log_loss": metrics.log_loss(logits, labels)}

    @property
    def metric(self) -> str:
        return f"val/{primary_metric(self.store.dataset.task == 'multi')}"


def get_labels(store: Store) -> Tensor:
    """Return the labels of a labelled store, on the host."""
    if store.labels is None:
        raise ValueError(f"{store.dataset.name} has no labels")
    return store.labels.cpu()
