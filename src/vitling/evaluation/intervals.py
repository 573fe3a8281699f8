"""Confidence intervals of accuracies. Imports no torch."""

from __future__ import annotations

import math
from statistics import NormalDist

LEVEL = 0.95


def wilson_interval(accuracy: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Compute Wilson's score interval of the fraction `accuracy` of n independent images.

    It is the set of true accuracies p with |accuracy - p| <= z sqrt(p (1 - p) / n) (Wilson 1927), and unlike the
    interval accuracy +- z sqrt(accuracy (1 - accuracy) / n) it holds for few images and near 0 and 1.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (accuracy + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def format_interval(accuracy: float, n: int) -> str:
    """Format the interval in percent: `47-78`, with a decimal if it is narrower than two points."""
    low, high = (100 * bound for bound in wilson_interval(accuracy, n))
    digits = 0 if high - low >= 2 else 1
    return f"{low:.{digits}f}-{high:.{digits}f}"
