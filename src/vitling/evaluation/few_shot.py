"""How good a classifier of few labelled images a class is: curves over their number, a mean over draws of them.

A draw is nested: its two images of a class are its one image and another. So a curve shows what one more image is
worth, not how lucky it was drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.knn import exact_matmul
from vitling.evaluation.logistic import Backend, fit_logistic
from vitling.formatting import format_count
from vitling.keys import make_rng

STRENGTH = 1.0  # C of the logistic regression, scikit-learn's own: there are no images to choose it on

Scorer = Callable[[Tensor, Tensor], float]


def few_shot(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    classes: int,
    score: Scorer,
    shots: Sequence[int] = (1, 2, 5, 10),
    draws: int = 5,
    seed: int = 0,
    backend: Backend = "torch",
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[str, dict[int, dict[str, Any]]]:
    """For `centroid` and `logistic`, for each number of images a class: values of all draws, mean and deviation."""
    found: dict[str, dict[int, list[float]]] = {way: {n: [] for n in shots} for way in ("centroid", "logistic")}
    for done in range(draws):
        for n in shots:
            rows = torch.from_numpy(drawn(labels.cpu().numpy(), n, seed, done)).to(bank.device)
            few, of_few = bank[rows], labels[rows]
            found["centroid"][n].append(score(nearest_centroid(few, of_few, queries, classes), query_labels))
            (fit,) = fit_logistic(few, of_few, classes, [STRENGTH], backend)
            found["logistic"][n].append(score(fit.logits(queries), query_labels))
        on_progress(done + 1)
    return {way: {n: _summary(values) for n, values in curve.items()} for way, curve in found.items()}


def possible(labels: Tensor, shots: Sequence[int]) -> list[int]:
    """The numbers of images that every class has; a UserError where there is none."""
    if labels.ndim == 2:
        raise UserError("Few-shot curves need one class an image, and these have several labels.")
    counts = torch.bincount(labels)
    least = int(counts[counts > 0].min())
    fitting = [n for n in shots if n <= least]
    if not fitting:
        raise UserError(
            f"--few-shot.shots {' '.join(map(str, shots))}: the smallest class has {format_count(least, 'image')} to "
            "train on. Ask for fewer, or leave that class out."
        )
    return fitting


def drawn(labels: np.ndarray, each: int, seed: int, draw: int) -> np.ndarray:
    """Rows of `each` images of every class that has any; those of a smaller number are among those of a larger."""
    order = make_rng("few-shot", seed, draw).permutation(len(labels))
    return np.concatenate([order[labels[order] == c][:each] for c in np.unique(labels)])


def nearest_centroid(bank: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Cosines [N, C] with the mean of each class's unit features: with one image a class, 1-NN. -1 for a class without
    images."""
    unit, asked = F.normalize(bank.float(), dim=1), F.normalize(queries.float(), dim=1)
    sums = unit.new_zeros(classes, unit.shape[1]).index_add_(0, labels, unit)
    with exact_matmul():
        cosines = asked @ F.normalize(sums, dim=1).T
    return torch.where(torch.bincount(labels, minlength=classes) > 0, cosines, -1.0)


def _summary(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "deviation": deviation, "values": values}
