"""Which run is better, and whether the difference is real: runs side by side, on the same images."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from vitling.errors import UserError
from vitling.evaluation.answers import Answers, load_answers
from vitling.evaluation.differences import LEVEL, Interval, difference_interval, mcnemar, statistic_interval
from vitling.files import check_writable, write_json
from vitling.runs.seeds import runs_of

Weights = Literal["last", "best"]


@dataclass(frozen=True)
class Group:
    """A run, or the runs of one setting with several seeds."""

    name: str
    answers: list[Answers]

    @property
    def values(self) -> list[float]:
        return [score(one) for one in self.answers]

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.answers) > 1 else None

    @property
    def right(self) -> np.ndarray:
        return np.stack([one.right for one in self.answers])

    def at(self, keys: np.ndarray) -> Group:
        return Group(self.name, [one.at(keys) for one in self.answers])


def compare(
    runs: tuple[str, ...],
    split: Literal["auto", "val", "test"] = "auto",
    weights: Weights = "last",
    out: str | None = None,
) -> dict[str, Any]:
    """The groups, the best first, and each beside the next. `auto` takes test where all have it, else val."""
    if out:
        check_writable(out)
    if len(runs) < 2:
        raise UserError("Name two runs or more: vitling compare runs/first runs/second")
    every = Counter(one.resolve() for run in runs for one in runs_of(run))
    if twice := [str(run) for run, times in every.items() if times > 1]:
        raise UserError(f"{twice[0]} is named twice, or is one of several that are named together.")
    chosen, ranked = ranked_groups({run: run for run in runs}, split, weights)
    answers = ranked[0].answers[0]
    result = {
        "split": chosen,
        "weights": weights,
        "images": len(answers),
        "metric": "mean_average_precision" if answers.several else "top1",
        "runs": [_row(group) for group in ranked],
        "differences": [difference_of(better, worse) for better, worse in pairwise(ranked)],
    }
    if out:
        write_json(out, result)
    return result


def ranked_groups(runs: Mapping[str, str], split: str, weights: Weights) -> tuple[str, list[Group]]:
    """By name, a run each: the split that was chosen, and what they answered there to the images that all of them
    answered, in one order; the best first."""
    chosen, groups = _groups(runs, split, weights)
    return chosen, sorted(_aligned(groups, chosen), key=lambda group: -group.mean)


def score(answers: Answers) -> float:
    """Top-1 accuracy; for several labels an image mean average precision."""
    if not answers.several:
        return float(answers.right.mean())
    from torch import from_numpy

    from vitling.evaluation.metrics import mean_average_precision

    return mean_average_precision(from_numpy(answers.given).float(), from_numpy(answers.labels))


def _groups(runs: Mapping[str, str], split: str, weights: Weights) -> tuple[str, list[Group]]:
    found = {name: [load_answers(folder) for folder in runs_of(run)] for name, run in runs.items()}
    every = [parts for group in found.values() for parts in group]
    wanted = ("test", "val") if split == "auto" else (split,)
    chosen = next((s for s in wanted if all(f"{weights}/{s}" in parts for parts in every)), None)
    if chosen is None:
        raise UserError(
            f"Not all of these runs have answers of their {weights} weights on {' or '.join(wanted)}: "
            f"{'; '.join(f'{name} has {_known(group)}' for name, group in found.items())}. "
            "Train them with the same --val, or on data with a test split."
        )
    return chosen, [Group(name, [parts[f"{weights}/{chosen}"] for parts in group]) for name, group in found.items()]


def _known(group: list[dict[str, Answers]]) -> str:
    return ", ".join(sorted({part for parts in group for part in parts})) or "none"


def _aligned(groups: list[Group], split: str) -> list[Group]:
    every = [one for group in groups for one in group.answers]
    keys = every[0].keys
    for one in every[1:]:
        keys = np.intersect1d(keys, one.keys)
    if not len(keys):
        raise UserError(f"These runs have no image of {split} in common: they were trained on different data or seeds.")
    aligned = [group.at(keys) for group in groups]
    labels = [one.labels for group in aligned for one in group.answers]
    if any(not np.array_equal(labels[0], other) for other in labels[1:]):
        raise UserError("These runs disagree about the labels of the images; their classes are not the same.")
    return aligned


def _row(group: Group) -> dict[str, Any]:
    return {"run": group.name, "values": group.values, "mean": group.mean, "deviation": group.deviation}


def difference_of(better: Group, worse: Group) -> dict[str, Any]:
    """`told_apart`: there is no 0 in the interval, nor, of two single runs, anything that McNemar's exact test calls
    luck: of few images that they disagree on the bootstrap alone makes too much."""
    groups = _groups_of(better, worse)
    interval = _interval(better, worse, groups)
    found: dict[str, Any] = {"better": better.name, "worse": worse.name}
    found |= {"difference": better.mean - worse.mean, "interval": interval}
    told_apart = not interval.has_zero
    if len(better.answers) == len(worse.answers) == 1 and not better.answers[0].several and groups is None:
        found["mcnemar_p"] = mcnemar(better.answers[0].right, worse.answers[0].right)
        told_apart &= found["mcnemar_p"] <= 1 - LEVEL
    return found | {"told_apart": told_apart, "in_words": _in_words(better, worse, interval, told_apart)}


def _groups_of(*sides: Group) -> np.ndarray | None:
    """Of the images, where some belong together; runs of an older vitling do not know it."""
    every = (answers.groups for side in sides for answers in side.answers)
    return next((groups for groups in every if len(np.unique(groups)) < len(groups)), None)


def _interval(one: Group, other: Group, groups: np.ndarray | None) -> Interval:
    if not one.answers[0].several:
        return difference_interval(one.right, other.right, groups)

    scores, other_scores = ([partial(_score_at, answers) for answers in group.answers] for group in (one, other))
    return statistic_interval(scores, other_scores, len(one.answers[0]), groups)


def _score_at(answers: Answers, images: np.ndarray) -> float:
    """NaN where none of these images has a label."""
    some = answers.take(images)
    return score(some) if some.labels.any() else math.nan


def _in_words(better: Group, worse: Group, interval: Interval, told_apart: bool) -> str:
    span = in_points(better.mean - worse.mean, *interval)
    seeds = (len(better.answers), len(worse.answers))
    caution = "" if min(seeds) > 1 else " What another seed would give is not in this: train with --seeds 3."
    if not told_apart and not interval.has_zero:
        caution = f" There is no 0 in that, but by McNemar's exact test it may be luck.{caution}"
    if not told_apart:
        return f"These images cannot tell {better.name} and {worse.name} apart ({span}).{caution}"
    return f"{better.name} is better than {worse.name} ({span}).{caution}"


def in_points(difference: float, low: float, high: float) -> str:
    return f"{100 * difference:+.1f} points, 95 % from {100 * low:+.1f} to {100 * high:+.1f}"
