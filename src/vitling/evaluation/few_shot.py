"""Few-shot curves: scores over the number of labelled images per class, averaged over random draws.

Draws are nested: a draw of two images per class is the draw of one and another image. So a curve shows the value of
one more image, not the luck of the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.config import FewShotConfig
from vitling.evaluation.intervals import summarise_values
from vitling.evaluation.knn import exact_matmul
from vitling.evaluation.logistic import Backend, fit_logistic
from vitling.formatting import format_count
from vitling.keys import make_rng

STRENGTH = 1.0  # C of the logistic regression, scikit-learn's default: no images are left to tune it on

Scorer = Callable[[Tensor, Tensor], float]


def measure_few_shot(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    classes: int,
    score: Scorer,
    config: FewShotConfig,
    seed: int = 0,
    backend: Backend = "torch",
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[str, dict[int, dict[str, Any]]]:
    """Score centroid and logistic classifiers for each number of images per class: all draws, their mean and std."""
    found: dict[str, dict[int, list[float]]] = {way: {n: [] for n in config.shots} for way in ("centroid", "logistic")}
    for done in range(config.draws):
        for n in config.shots:
            rows = torch.from_numpy(draw_few(labels.cpu().numpy(), n, seed, done)).to(bank.device)
            few, few_labels = bank[rows], labels[rows]
            found["centroid"][n].append(score(score_by_centroid(few, few_labels, queries, classes), query_labels))
            (fit,) = fit_logistic(few, few_labels, classes, [STRENGTH], backend)
            found["logistic"][n].append(score(fit.logits(queries), query_labels))
        on_progress(done + 1)
    return {way: {n: summarise_values(values) for n, values in curve.items()} for way, curve in found.items()}


def select_shots(labels: Tensor, shots: Sequence[int]) -> list[int]:
    """Return the shots for which every class has enough images; raise UserError if there are none."""
    if labels.ndim == 2:
        raise UserError("--with few-shot needs one class per image, but these images have several labels.")
    counts = torch.bincount(labels)
    least = int(counts[counts > 0].min())
    feasible = [n for n in shots if n <= least]
    if not feasible:
        raise UserError(
            f"--few-shot.shots {' '.join(map(str, shots))} is too many: the smallest class has "
            f"{format_count(least, 'training image')}. Use fewer shots, or leave out that class."
        )
    return feasible


def draw_few(labels: np.ndarray, each: int, seed: int, draw: int) -> np.ndarray:
    """Draw the rows of `each` images per class; a draw of fewer images is part of a draw of more."""
    order = make_rng("few-shot", seed, draw).permutation(len(labels))
    return np.concatenate([order[labels[order] == c][:each] for c in np.unique(labels)])


def score_by_centroid(bank: Tensor, labels: Tensor, queries: Tensor, classes: int) -> Tensor:
    """Compute cosines [N, C] with the mean of each class's normalised features; -1 for a class without images.

    With one image per class, this is 1-NN.
    """
    unit, unit_queries = F.normalize(bank.float(), dim=1), F.normalize(queries.float(), dim=1)
    sums = unit.new_zeros(classes, unit.shape[1]).index_add_(0, labels, unit)
    with exact_matmul():
        cosines = unit_queries @ F.normalize(sums, dim=1).T
    return torch.where(torch.bincount(labels, minlength=classes) > 0, cosines, -1.0)
