"""Which run is better, and whether the difference is real: runs side by side, on the same images."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from vitling.errors import UserError
from vitling.evaluation.answers import Answers, load_answers
from vitling.evaluation.differences import Interval, difference_interval, mcnemar, statistic_interval
from vitling.files import check_writable, write_json
from vitling.recipes.seeds import runs_of

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
    if len(set(runs)) < 2:
        raise UserError("Name two runs or more: vitling compare runs/first runs/second")
    chosen, groups = _groups(runs, split, weights)
    groups, images = _aligned(groups, chosen)
    ranked = sorted(groups, key=lambda group: -group.mean)
    result = {
        "split": chosen,
        "weights": weights,
        "images": images,
        "metric": "mean_average_precision" if groups[0].answers[0].several else "top1",
        "runs": [_row(group) for group in ranked],
        "differences": [_difference(better, worse) for better, worse in pairwise(ranked)],
    }
    if out:
        write_json(out, result)
    return result


def score(answers: Answers) -> float:
    """Top-1 accuracy; for several labels an image mean average precision."""
    if not answers.several:
        return float(answers.right.mean())
    from torch import from_numpy

    from vitling.evaluation.metrics import mean_average_precision

    return mean_average_precision(from_numpy(answers.given).float(), from_numpy(answers.labels))


def _groups(runs: tuple[str, ...], split: str, weights: Weights) -> tuple[str, list[Group]]:
    found = {run: [load_answers(folder) for folder in runs_of(run)] for run in dict.fromkeys(runs)}
    every = [parts for group in found.values() for parts in group]
    wanted = ("test", "val") if split == "auto" else (split,)
    chosen = next((s for s in wanted if all(f"{weights}/{s}" in parts for parts in every)), None)
    if chosen is None:
        raise UserError(
            f"Not all of these runs have answers of their {weights} weights on {' or '.join(wanted)}: "
            f"{'; '.join(f'{run} has {_known(group)}' for run, group in found.items())}."
        )
    return chosen, [Group(run, [parts[f"{weights}/{chosen}"] for parts in group]) for run, group in found.items()]


def _known(group: list[dict[str, Answers]]) -> str:
    return ", ".join(sorted({part for parts in group for part in parts})) or "none"


def _aligned(groups: list[Group], split: str) -> tuple[list[Group], int]:
    """On the images that all of them answered, in one order."""
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
    return aligned, len(keys)


def _row(group: Group) -> dict[str, Any]:
    return {"run": group.name, "values": group.values, "mean": group.mean, "deviation": group.deviation}


def _difference(better: Group, worse: Group) -> dict[str, Any]:
    interval = _interval(better, worse)
    found = {"better": better.name, "worse": worse.name, "difference": better.mean - worse.mean, "interval": interval}
    single = len(better.answers) == len(worse.answers) == 1 and not better.answers[0].several
    if single:
        found["mcnemar_p"] = mcnemar(better.answers[0].right, worse.answers[0].right)
    return found | {"in_words": _in_words(better, worse, interval)}


def _interval(one: Group, other: Group) -> Interval:
    if not one.answers[0].several:
        return difference_interval(one.right, other.right)

    scores, other_scores = ([partial(_score_at, answers) for answers in group.answers] for group in (one, other))
    return statistic_interval(scores, other_scores, len(one.answers[0]))


def _score_at(answers: Answers, images: np.ndarray) -> float:
    return score(Answers(answers.keys[images], answers.labels[images], answers.given[images]))


def _in_words(better: Group, worse: Group, interval: Interval) -> str:
    points, low, high = (100 * x for x in (better.mean - worse.mean, *interval))
    span = f"{points:+.1f} points, 95 % from {low:+.1f} to {high:+.1f}"
    seeds = (len(better.answers), len(worse.answers))
    caution = "" if min(seeds) > 1 else " What another seed would give is not in this: train with --seeds 3."
    if interval.has_zero:
        return f"These images cannot tell {better.name} and {worse.name} apart ({span}).{caution}"
    return f"{better.name} is better than {worse.name} ({span}).{caution}"
