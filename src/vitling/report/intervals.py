"""Confidence interval of an accuracy."""

from __future__ import annotations

import math

Z = 1.959963984540054  # quantile of the standard normal distribution for 95 %


def compute_wilson_interval(correct: int, images: int) -> tuple[float, float]:
    """Compute the 95 % interval of Wilson (1927) for `correct` of `images`; it stays within 0 and 1."""
    share, weight = correct / images, Z**2 / images
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + (weight / 2) ** 2) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)
