"""Confidence intervals of accuracies. Imports no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

LEVEL = 0.95  # of the confidence intervals


def wilson_interval(accuracy: float, n: int) -> tuple[float, float]:
    """Compute Wilson's score interval of the fraction `accuracy` of n independent images.

    It is the set of true accuracies p with |accuracy - p| <= z sqrt(p (1 - p) / n) (Wilson 1927), and unlike the
    interval accuracy +- z sqrt(accuracy (1 - accuracy) / n) it holds for few images and near 0 and 1.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    centre = (accuracy + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(accuracy * (1 - accuracy) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Compute Student's interval of the mean of independent fractions, such as one of each image; None for one.

    Use Wilson's interval if all values are equal: Student's would have no width.
    """
    if len(values) < 2:
        return None
    if len(set(values)) == 1:
        return wilson_interval(values[0], len(values))
    from scipy.stats import t

    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * error
    return max(0.0, mean - half), min(1.0, mean + half)


def summarise_values(values: Sequence[float]) -> dict[str, Any]:
    """Compute the mean and the standard deviation of a figure, None for one value."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "std": std, "values": values}


def format_interval(accuracy: float, n: int) -> str:
    """Format the interval of an accuracy on n images."""
    return format_bounds(*wilson_interval(accuracy, n))


def format_bounds(low: float, high: float) -> str:
    """Format an interval in percent: `47-78`, with a decimal if it is narrower than two points."""
    low, high = 100 * low, 100 * high
    digits = 0 if high - low >= 2 else 1
    return f"{low:.{digits}f}-{high:.{digits}f}"
