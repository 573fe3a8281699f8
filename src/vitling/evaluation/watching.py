"""What the features of a pre-training run are worth, while it runs: k-NN where there are labels, spread where not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitling.data.dataset import UNLABELLED, Dataset
from vitling.data.holdout import hold_out
from vitling.data.store import Store
from vitling.evaluation.collapse import CollapseWatcher
from vitling.evaluation.features import compute_pooled_features
from vitling.evaluation.knn import knn_scores
from vitling.evaluation.spread import measure_spread
from vitling.objectives.moments import Moment

K = 20  # neighbours: what DINO found best
DEFAULT_HOLD_OUT = 0.1
SAMPLE = 512  # images that the spread is measured on, so that the SVD stays quick


class Part(NamedTuple):
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
    say: Callable[[str], None],
    seed: int = 0,
) -> CollapseWatcher:
    """The watcher that suits the data: k-NN where images have labels, else the spread alone; collapse in any case."""
    parts = split_for_knn(train, val, seed)
    watcher = (
        KnnWatcher(*parts, size, crop_fraction, every) if parts else SpreadWatcher(train, size, crop_fraction, every)
    )
    return CollapseWatcher(watcher, stop, say)


def split_for_knn(train: Store, val: Store | None = None, seed: int = 0) -> tuple[Part, Part] | None:
    """The images that vote and those that are asked about: train and val, or without a val nine tenths of train and
    the tenth held out of it, class by class and with groups kept together. An image without a label is in neither: a
    pool beside labelled images changes nothing. None where that leaves nothing to ask.

    This is a monitor, not an evaluation. Pre-training goes on to use ALL images of train, those held out here too: only
    their labels are not used, neither in training nor as votes. A method that trains on labels sees them: without a
    val its score flatters. Nothing here may open the test split.
    """
    known = labelled_ids(train.dataset)
    if not len(known):
        return None
    if val is not None and val.labels is not None:
        return Part(train, known), Part(val, np.arange(len(val)))
    dataset = train.dataset.take(known)
    labels = dataset.labels if dataset.labels is not None else dataset.partial_labels
    held = hold_out(labels, dataset.groups, len(known), DEFAULT_HOLD_OUT, seed)
    return (Part(train, known[~held]), Part(train, known[held])) if held.any() else None


def labelled_ids(dataset: Dataset) -> np.ndarray:
    """Of the images that have labels: all, those beside an unlabelled pool, or none."""
    if dataset.partial_labels is not None:
        return np.flatnonzero(dataset.partial_labels != UNLABELLED)
    return np.arange(0 if dataset.labels is None else len(dataset))


@dataclass
class KnnWatcher:
    """knn/top1 (knn/mean_average_precision for several labels) of `asked` by the votes of `voters`, and the spread."""

    voters: Part
    asked: Part
    size: int
    crop_fraction: float
    every: int = 1

    def __call__(self, moment: Moment) -> dict[str, float]:
        voters, asked = (self._features(moment, part) for part in (self.voters, self.asked))
        score = knn_scores(voters, self.voters.labels, asked, self.asked.labels, [self.k], self._classes)[self.k]
        return {self.metric: score, **_spread(torch.cat([voters, asked]))}

    @property
    def k(self) -> int:
        """No more neighbours than a class has images on average: the others would have to vote for a wrong one."""
        return min(K, -(-len(self.voters.ids) // self._classes))

    @property
    def metric(self) -> str:
        return "knn/mean_average_precision" if self.voters.labels.ndim == 2 else "knn/top1"

    @property
    def _classes(self) -> int:
        return len(self.voters.store.dataset.class_names)

    def _features(self, moment: Moment, part: Part) -> Tensor:
        return compute_pooled_features(
            moment.objective.final_backbone, part.store, self.size, self.crop_fraction, part.ids
        )


@dataclass
class SpreadWatcher:
    """features/spread, features/effective_rank and features/cosine of images that need no labels."""

    store: Store
    size: int
    crop_fraction: float
    every: int = 1
    sample: int = SAMPLE

    def __call__(self, moment: Moment) -> dict[str, float]:
        ids = _evenly(len(self.store), self.sample)
        return _spread(
            compute_pooled_features(moment.objective.final_backbone, self.store, self.size, self.crop_fraction, ids)
        )


def _spread(features: Tensor) -> dict[str, float]:
    sample = features[torch.from_numpy(_evenly(len(features), SAMPLE)).to(features.device)]
    return {f"features/{name}": value for name, value in measure_spread(sample)._asdict().items()}


def _evenly(n: int, sample: int) -> np.ndarray:
    """So many of n, the same in every epoch, from all classes of a store that is sorted by class."""
    return np.linspace(0, n - 1, min(sample, n)).astype(np.int64)
