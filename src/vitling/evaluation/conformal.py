"""Prediction sets that contain the true class with a given probability: split conformal prediction.

The score of an image is -log p of its class; the set of a new image has all classes whose score is at most a quantile
of the scores of images that the network was not trained on (LAC; Sadinle, Lei and Wasserman 2019). Of all sets with
this coverage these have the fewest classes on average; APS (Romano et al. 2020) has larger ones. The coverage holds on
average over images like those that the scores come from, not for each class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitling.evaluation.config import check_coverage, rank_for
from vitling.evaluation.intervals import wilson_interval


def compute_scores(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute -log p of each image's class [N] from logits [N, C] after the temperature."""
    return -logits.double().log_softmax(dim=1).gather(1, labels[:, None])[:, 0]


def find_threshold(scores: Tensor, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores; the 1 stands for the new image itself."""
    check_coverage(coverage, len(scores))
    return float(scores.sort().values[rank_for(coverage, len(scores)) - 1])


def make_sets(logits: Tensor, threshold: float) -> Tensor:
    """Return the classes in each image's set, bool [N, C]; always with the most probable class."""
    logs = logits.double().log_softmax(dim=1)
    sets = -logs <= threshold
    return sets.scatter(1, logs.argmax(dim=1, keepdim=True), torch.ones_like(sets[:, :1]))


def summarise_sets(sets: Tensor, labels: Tensor) -> dict[str, Any]:
    """Compute how many sets [N, C] contain their image's class, and how large they are."""
    covered = float(sets.gather(1, labels[:, None]).double().mean())
    sizes = sets.sum(dim=1).double()
    return {
        "covered": covered,
        "covered_interval": list(wilson_interval(covered, len(labels))),
        "mean_size": float(sizes.mean()),
        "single": float((sizes == 1).double().mean()),
    }
