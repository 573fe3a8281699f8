"""Watchers of pre-training: k-NN accuracy if there are labels, and the spread of features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitling.data.dataset import UNLABELLED, Dataset, sample_evenly
from vitling.data.holdout import hold_out
from vitling.data.splits import DEFAULT_HOLD_OUT
from vitling.data.store import Store
from vitling.evaluation.collapse import CollapseWatcher
from vitling.evaluation.features import compute_pooled_features
from vitling.evaluation.knn import knn_scores
from vitling.evaluation.spread import measure_spread
from vitling.metric_names import primary_metric
from vitling.objectives.moments import Moment

K = 20  # neighbours; the best in DINO
SAMPLE = 512  # images for the spread, so that the SVD is fast


class ImageSubset(NamedTuple):
    """Some images of a store."""

    store: Store
    ids: np.ndarray

    @property
    def labels(self) -> Tensor:
        labels = self.store.labels
        if labels is None and self.store.dataset.partial_labels is not None:
            labels = torch.from_numpy(self.store.dataset.partial_labels).to(self.store.device)
        if labels is None:
            raise ValueError(f"{self.store.dataset.name} has no labels")
        return labels[torch.from_numpy(self.ids).to(self.store.device)]


def watch_pretraining(
    train: Store,
    val: Store | None,
    size: int,
    crop_fraction: float,
    every: int,
    stop: bool,
    warn: Callable[[str], None],
    seed: int = 0,
) -> CollapseWatcher:
    """Make a collapse watcher that also measures k-NN if images have labels, and the spread."""
    parts = split_for_knn(train, val, seed)
    watcher = (
        KnnWatcher(*parts, size, crop_fraction, every) if parts else SpreadWatcher(train, size, crop_fraction, every)
    )
    return CollapseWatcher(watcher, stop, warn)


def split_for_knn(train: Store, val: Store | None = None, seed: int = 0) -> tuple[ImageSubset, ImageSubset] | None:
    """Choose the images that vote and those that are classified, or None if there are too few.

    They are train and val; without a val split, nine tenths of train and a stratified tenth of it, with groups kept
    together. Images without a label are in neither.

    This is a monitor, not an evaluation: pre-training uses ALL images of train, including those held out here, only not
    their labels. For a method that trains on labels, the score without a val split is too high. Never open the test
    split here.
    """
    known = find_labelled(train.dataset)
    if not len(known):
        return None
    if val is not None and val.labels is not None:
        return ImageSubset(train, known), ImageSubset(val, np.arange(len(val)))
    dataset = train.dataset.take(known)
    labels = dataset.labels if dataset.labels is not None else dataset.partial_labels
    held = hold_out(labels, dataset.groups, len(known), DEFAULT_HOLD_OUT, seed)
    return (ImageSubset(train, known[~held]), ImageSubset(train, known[held])) if held.any() else None


def find_labelled(dataset: Dataset) -> np.ndarray:
    """Return the ids of labelled images: all, those that come with an unlabelled pool, or none."""
    if dataset.partial_labels is not None:
        return np.flatnonzero(dataset.partial_labels != UNLABELLED)
    return np.arange(0 if dataset.labels is None else len(dataset))


@dataclass
class KnnWatcher:
    """Watcher of knn/top1 (knn/mean_average_precision for several labels) of `queries`, and of the spread."""

    voters: ImageSubset
    queries: ImageSubset
    size: int
    crop_fraction: float
    every: int = 1

    def __call__(self, moment: Moment) -> dict[str, float]:
        voters, queries = (self._features(moment, part) for part in (self.voters, self.queries))
        score = knn_scores(voters, self.voters.labels, queries, self.queries.labels, [self.k], self._classes)[self.k]
        return {self.metric: score, **_measure_spread(torch.cat([voters, queries]))}

    @property
    def k(self) -> int:
        """At most the mean number of images per class: further neighbours must be of another class."""
        return min(K, -(-len(self.voters.ids) // self._classes))

    @property
    def metric(self) -> str:
        return f"knn/{primary_metric(self.voters.labels.ndim == 2)}"

    @property
    def _classes(self) -> int:
        return len(self.voters.store.dataset.class_names)

    def _features(self, moment: Moment, part: ImageSubset) -> Tensor:
        return compute_pooled_features(
            moment.objective.final_backbone, part.store, self.size, self.crop_fraction, part.ids
        )


@dataclass
class SpreadWatcher:
    """Watcher of features/spread, features/effective_rank and features/cosine, without labels."""

    store: Store
    size: int
    crop_fraction: float
    every: int = 1
    sample: int = SAMPLE

    def __call__(self, moment: Moment) -> dict[str, float]:
        ids = sample_evenly(len(self.store), self.sample)
        return _measure_spread(
            compute_pooled_features(moment.objective.final_backbone, self.store, self.size, self.crop_fraction, ids)
        )


def _measure_spread(features: Tensor) -> dict[str, float]:
    sample = features[torch.from_numpy(sample_evenly(len(features), SAMPLE)).to(features.device)]
    return {f"features/{name}": value for name, value in measure_spread(sample)._asdict().items()}
