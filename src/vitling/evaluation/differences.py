"""Confidence intervals and tests for the difference between runs on the same images. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, ndtri, stdtrit

from vitling.evaluation.intervals import LEVEL

DRAWS = 4_000  # bootstrap samples
SLOW_DRAWS = 300  # for a statistic that is recomputed for each
BLOCK = 1 << 24  # drawn numbers in memory at once
MANY = 1e6  # degrees of freedom from which Student's t is taken as normal
EXACT = 1e-12  # smaller differences are rounding

Statistic = Callable[[np.ndarray], float]


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


def bootstrap_difference(
    one: np.ndarray, other: np.ndarray, groups: np.ndarray | None = None, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Estimate an interval of mean(one) - mean(other): bool [seeds, N] each, of the same N images in the same order.

    The bootstrap resamples images, the same ones for both sides, or whole `groups` ([N]). The variance between seeds is
    added for each side with several; with one seed per side, the interval does not cover it.

    Runs that agree on every image have bootstrap samples without any variance, however few images there are. So the
    interval of two single runs is at least as wide as the adjusted Wald interval, and others as wide as that of runs
    that agree.
    """
    random = np.random.default_rng(seed)
    sums = _sum_groups(np.concatenate([one, other, np.ones_like(one[:1])]).astype(np.int64), groups)  # last row: images
    kinds, counts = np.unique(sums, axis=1, return_counts=True)  # equal columns are drawn together
    weights = np.concatenate([np.full(len(one), 1 / len(one)), np.full(len(other), -1 / len(other))])
    differences, sizes = weights @ kinds[:-1], kinds[-1]
    found: list[np.ndarray] = []
    at_once = max(1, BLOCK // len(counts))
    for start in range(0, draws, at_once):
        drawn = random.multinomial(counts.sum(), counts / counts.sum(), size=min(at_once, draws - start))
        found.append(drawn @ differences / (drawn @ sizes))
    units = int(counts.sum())
    interval = _make_interval(
        np.concatenate(found), one.mean(axis=1), other.mean(axis=1), None if groups is None else units
    )
    interval = _widen(interval, float(one.mean() - other.mean()), units)
    if groups is not None or len(one) + len(other) > 2:
        return interval
    wald = adjusted_wald(one[0], other[0])
    return Interval(max(-1.0, min(interval.low, wald.low)), min(1.0, max(interval.high, wald.high)))


def bootstrap_statistic(
    one: Sequence[Statistic],
    other: Sequence[Statistic],
    images: int,
    groups: np.ndarray | None = None,
    draws: int = SLOW_DRAWS,
    seed: int = 0,
) -> Interval:
    """Estimate such an interval for any statistic of images, such as mean average precision; one function per seed.

    Samples for which it is undefined (NaN), such as one without any label, are dropped.
    """
    random = np.random.default_rng(seed)
    _, unit_of = np.unique(np.arange(images) if groups is None else groups, return_inverse=True)
    members = np.split(np.argsort(unit_of, kind="stable"), np.cumsum(np.bincount(unit_of))[:-1])

    def values(side: Sequence[Statistic], drawn: np.ndarray) -> np.ndarray:
        return np.array([statistic(drawn) for statistic in side])

    found = np.empty(draws)
    for i in range(draws):
        drawn = np.concatenate([members[unit] for unit in random.integers(0, len(members), len(members))])
        found[i] = values(one, drawn).mean() - values(other, drawn).mean()
    ours, theirs = (values(side, np.arange(images)) for side in (one, other))
    return _make_interval(found[np.isfinite(found)], ours, theirs, None if groups is None else len(members))


def _sum_groups(rows: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Sum the columns of each group: [R, N] -> [R, groups]."""
    if groups is None:
        return rows
    _, group_of = np.unique(groups, return_inverse=True)
    return np.stack([np.bincount(group_of, row) for row in rows]).astype(np.int64)


def _make_interval(drawn: np.ndarray, one: np.ndarray, other: np.ndarray, groups: int | None) -> Interval:
    """Make the interval from the bootstrap samples and the values of each side's seeds (`one`, `other`).

    With one seed per side and no groups, it has the percentiles of the samples. Otherwise the variance is estimated
    from few seeds or groups, so it is Student's t with the degrees of freedom of Satterthwaite (1946). The bootstrap
    variance of the mean of g groups is too small by (g - 1) / g (Rao and Wu 1988). The variances of images and of seeds
    are added although they overlap: the interval may be too wide, but not too narrow.
    """
    parts: list[tuple[float, float]] = [
        (side.var(ddof=1) / len(side), len(side) - 1) for side in (one, other) if len(side) > 1
    ]  # variance and degrees of freedom
    if not parts and groups is None:
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Interval(float(low), float(high))
    difference = float(one.mean() - other.mean())
    if groups is not None and (groups < 2 or (difference and np.ptp(drawn) < EXACT)):  # too few to estimate a variance
        return Interval(-1.0, 1.0)
    parts.append((drawn.var(), MANY) if groups is None else (drawn.var() * groups / (groups - 1), groups - 1))
    variance = sum(part for part, _ in parts)
    denominator = sum(part**2 / max(freedom, 1) for part, freedom in parts)
    freedom = variance**2 / denominator if denominator else MANY
    half_width = float(stdtrit(freedom, (1 + LEVEL) / 2) * variance**0.5)
    return Interval(difference - half_width, difference + half_width)


def _widen(interval: Interval, difference: float, units: int) -> Interval:
    """Widen to the adjusted Wald interval of runs that agree on this many images or groups, within [-1, 1]."""
    least = float(ndtri((1 + LEVEL) / 2)) / (units + 2)
    return Interval(max(-1.0, min(interval.low, difference - least)), min(1.0, max(interval.high, difference + least)))


def adjusted_wald(one: np.ndarray, other: np.ndarray) -> Interval:
    """Estimate the paired difference of two runs after adding half an image to each cell (Agresti and Min, 2005).

    The cells are the images that both, only one or neither gets right; bool [N] each.
    """
    n = len(one) + 2
    only_one, only_other = (one & ~other).sum() + 0.5, (~one & other).sum() + 0.5
    difference = float(only_one - only_other) / n
    half_width = float(ndtri((1 + LEVEL) / 2) * (only_one + only_other - n * difference**2) ** 0.5 / n)
    return Interval(difference - half_width, difference + half_width)


def mcnemar_p(one: np.ndarray, other: np.ndarray) -> float:
    """Compute the exact two-sided p-value of McNemar's test for the images that two runs get right; bool [N] each."""
    only_one, only_other = int((one & ~other).sum()), int((~one & other).sum())
    return min(1.0, 2 * float(bdtr(min(only_one, only_other), only_one + only_other, 0.5)))
