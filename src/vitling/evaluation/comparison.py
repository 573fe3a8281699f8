"""Comparison of runs on the same images: which is better, and whether the difference is real."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitling.errors import UserError
from vitling.evaluation.config import Weights
from vitling.evaluation.differences import Interval, bootstrap_difference, bootstrap_statistic, mcnemar_p
from vitling.evaluation.intervals import LEVEL
from vitling.evaluation.predictions import SplitPredictions, load_predictions


@dataclass(frozen=True)
class RunGroup:
    """A run, or the runs of one setting with several seeds."""

    name: str
    predictions: list[SplitPredictions]  # one for each seed

    @property
    def values(self) -> list[float]:
        return [score(one) for one in self.predictions]

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def correct(self) -> np.ndarray:
        """Correct predictions, bool [seeds, N]; for one label per image."""
        return np.stack([one.correct for one in self.predictions])

    @property
    def is_multi_label(self) -> bool:
        return self.predictions[0].is_multi_label

    def select(self, keys: np.ndarray) -> RunGroup:
        return RunGroup(self.name, [one.select(keys) for one in self.predictions])


def rank_runs(
    runs: Mapping[str, Sequence[Path]], split: Literal["auto", "val", "test"], weights: Weights
) -> tuple[str, list[RunGroup]]:
    """Load the predictions of run directories, in named groups, and sort the groups, best first.

    Returns the chosen split (`auto`: test if all runs have it, else val) and the groups, restricted to the images that
    all of them have, in one order.
    """
    chosen, groups = _load_groups(runs, split, weights)
    return chosen, sorted(_align(groups, chosen), key=lambda group: -group.mean)


def score(predictions: SplitPredictions) -> float:
    """Compute top-1 accuracy, or mean average precision for several labels per image."""
    if not predictions.is_multi_label:
        return float(predictions.correct.mean())
    from torch import from_numpy

    from vitling.evaluation.metrics import mean_average_precision

    return mean_average_precision(from_numpy(predictions.given).float(), from_numpy(predictions.labels))


def compare_pair(better: RunGroup, worse: RunGroup) -> dict[str, Any]:
    """Test whether the difference between two groups is more than chance.

    `told_apart`: the interval excludes 0 and, for two single runs, McNemar's exact test agrees. The bootstrap alone
    is too optimistic if the runs disagree on few images.
    """
    clusters = _find_clusters(better, worse)
    interval = _estimate_interval(better, worse, clusters)
    found: dict[str, Any] = {"better": better.name, "worse": worse.name}
    found |= {"difference": better.mean - worse.mean, "interval": interval}
    told_apart = not interval.has_zero
    single_runs = len(better.predictions) == len(worse.predictions) == 1
    if single_runs and not better.is_multi_label and clusters is None:
        found["mcnemar_p"] = mcnemar_p(better.correct[0], worse.correct[0])
        told_apart &= found["mcnemar_p"] <= 1 - LEVEL
    return found | {"told_apart": told_apart, "in_words": _describe(better, worse, interval, told_apart)}


def format_points(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} points, 95 % from {100 * low:+.1f} to {100 * high:+.1f}"


def _load_groups(runs: Mapping[str, Sequence[Path]], split: str, weights: Weights) -> tuple[str, list[RunGroup]]:
    loaded = {name: [load_predictions(folder) for folder in folders] for name, folders in runs.items()}
    every = [by_part for group in loaded.values() for by_part in group]
    wanted = ("test", "val") if split == "auto" else (split,)
    chosen = next((s for s in wanted if all(f"{weights}/{s}" in by_part for by_part in every)), None)
    if chosen is None:
        raise UserError(
            f"Not all of these runs have predictions of their {weights} weights on {' or '.join(wanted)}: "
            f"{'; '.join(f'{name} has {_list_parts(group)}' for name, group in loaded.items())}. "
            "Train them with the same --val, or on data with a test split."
        )
    part = f"{weights}/{chosen}"
    return chosen, [RunGroup(name, [by_part[part] for by_part in group]) for name, group in loaded.items()]


def _list_parts(group: list[dict[str, SplitPredictions]]) -> str:
    return ", ".join(sorted({part for by_part in group for part in by_part})) or "none"


def _align(groups: list[RunGroup], split: str) -> list[RunGroup]:
    every = [one for group in groups for one in group.predictions]
    keys = every[0].keys
    for one in every[1:]:
        keys = np.intersect1d(keys, one.keys)
    if not len(keys):
        raise UserError(
            f"These runs have no image of {split} in common. Train them on the same data with the same --split-seed "
            "(default: --seed)."
        )
    aligned = [group.select(keys) for group in groups]
    labels = [one.labels for group in aligned for one in group.predictions]
    if any(not np.array_equal(labels[0], other) for other in labels[1:]):
        raise UserError("These runs disagree about the labels of the images; their classes are not the same.")
    return aligned


def _find_clusters(*sides: RunGroup) -> np.ndarray | None:
    """Return the cluster of each image (a patient, a film), or None if every image is its own.

    Runs of older versions do not record it, so any run that does is enough.
    """
    every = (predictions.groups for side in sides for predictions in side.predictions)
    return next((clusters for clusters in every if len(np.unique(clusters)) < len(clusters)), None)


def _estimate_interval(one: RunGroup, other: RunGroup, clusters: np.ndarray | None) -> Interval:
    if not one.is_multi_label:
        return bootstrap_difference(one.correct, other.correct, clusters)
    scores, other_scores = ([partial(_score_images, one) for one in group.predictions] for group in (one, other))
    return bootstrap_statistic(scores, other_scores, len(one.predictions[0]), clusters)


def _score_images(predictions: SplitPredictions, images: np.ndarray) -> float:
    """Score a sample of the images; NaN if none of them has a label."""
    sample = predictions.take(images)
    return score(sample) if sample.labels.any() else math.nan


def _describe(better: RunGroup, worse: RunGroup, interval: Interval, told_apart: bool) -> str:
    span = format_points(better.mean - worse.mean, *interval)
    seeds = (len(better.predictions), len(worse.predictions))
    caution = "" if min(seeds) > 1 else " This does not cover the variation between seeds: train with --seeds 3."
    if told_apart:
        return f"{better.name} is better than {worse.name} ({span}).{caution}"
    if not interval.has_zero:
        caution = f" The interval excludes 0, but McNemar's exact test cannot rule out chance.{caution}"
    return f"These images cannot tell {better.name} and {worse.name} apart ({span}).{caution}"
