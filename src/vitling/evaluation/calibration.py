"""One temperature for all logits, so that a probability can be believed."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from vitling.evaluation.metrics import check

LOWEST, HIGHEST = 0.05, 20.0
_GOLDEN = (math.sqrt(5) - 1) / 2


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T in [0.05, 20] whose logits / T have the smallest negative log likelihood.

    A prior of one unit on log T keeps a tiny split that is all right from asking for certainty; on a few
    hundred images it is not felt. The likelihood of the data never falls below that at T = 1.
    """
    check(logits, labels)
    logits = logits.double()

    def cost(log_t: float) -> float:
        return _negative_log_likelihood(logits / math.exp(log_t), labels) + log_t**2 / 2

    best = _golden_section(cost, math.log(LOWEST), math.log(HIGHEST))
    return math.exp(best) if cost(best) < cost(0.0) else 1.0


def _negative_log_likelihood(logits: Tensor, labels: Tensor) -> float:
    if labels.ndim == 2:
        return float(F.binary_cross_entropy_with_logits(logits, labels.double(), reduction="sum"))
    return float(F.cross_entropy(logits, labels, reduction="sum"))


def _golden_section(cost: Callable[[float], float], low: float, high: float, steps: int = 40) -> float:
    """The minimum of a function with one valley: the likelihood is convex in 1 / T."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(steps):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost(right)
    return (low + high) / 2
