"""Is one run better than another, or was it luck? Intervals and tests on the same images. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

DRAWS = 4_000
SLOW_DRAWS = 300  # of a statistic that has to be computed anew for each
LEVEL = 0.95
BLOCK = 1 << 24  # drawn numbers held at once
MANY = 1e6  # degrees of freedom: as good as a normal distribution
EXACT = 1e-12  # less is rounding

Statistic = Callable[[np.ndarray], float]


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


def difference_interval(
    one: np.ndarray, other: np.ndarray, groups: np.ndarray | None = None, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """Of mean(one) - mean(other): bool [seeds, N] each, of the same N images in the same order.

    By the bootstrap: images are drawn anew, the same ones for both, each with all of its group ([N]) where there are
    groups. What seeds vary by is added, of each side that has several. With one seed a side, what another seed would
    give is not in the interval.
    """
    random = np.random.default_rng(seed)
    every = _sums(np.concatenate([one, other, np.ones_like(one[:1])]).astype(np.int64), groups)  # the last: images
    kinds, counts = np.unique(every, axis=1, return_counts=True)  # images, or groups, that are alike
    weights = np.concatenate([np.full(len(one), 1 / len(one)), np.full(len(other), -1 / len(other))])
    apart, sizes = weights @ kinds[:-1], kinds[-1]
    found: list[np.ndarray] = []
    at_once = max(1, BLOCK // len(counts))
    for start in range(0, draws, at_once):
        drawn = random.multinomial(counts.sum(), counts / counts.sum(), size=min(at_once, draws - start))
        found.append(drawn @ apart / (drawn @ sizes))
    units = None if groups is None else int(counts.sum())
    return _interval(np.concatenate(found), one.mean(axis=1), other.mean(axis=1), units)


def statistic_interval(
    one: Sequence[Statistic],
    other: Sequence[Statistic],
    images: int,
    groups: np.ndarray | None = None,
    draws: int = SLOW_DRAWS,
    seed: int = 0,
) -> Interval:
    """The same for any statistic of the drawn images, such as mean average precision: one function for each seed. Draws
    for which it is not defined (NaN), such as one without any label, do not count."""
    random = np.random.default_rng(seed)
    _, of = np.unique(np.arange(images) if groups is None else groups, return_inverse=True)
    members = np.split(np.argsort(of, kind="stable"), np.cumsum(np.bincount(of))[:-1])

    def values(side: Sequence[Statistic], drawn: np.ndarray) -> np.ndarray:
        return np.array([statistic(drawn) for statistic in side])

    found = np.empty(draws)
    for i in range(draws):
        drawn = np.concatenate([members[unit] for unit in random.integers(0, len(members), len(members))])
        found[i] = values(one, drawn).mean() - values(other, drawn).mean()
    ours, theirs = (values(side, np.arange(images)) for side in (one, other))
    return _interval(found[np.isfinite(found)], ours, theirs, None if groups is None else len(members))


def _sums(rows: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """[R, N] -> [R, groups]."""
    if groups is None:
        return rows
    _, of = np.unique(groups, return_inverse=True)
    return np.stack([np.bincount(of, row) for row in rows]).astype(np.int64)


def _interval(drawn: np.ndarray, one: np.ndarray, other: np.ndarray, groups: int | None) -> Interval:
    """Percentiles of what was drawn, where that is all. `one` and `other` are the values of each side's seeds.

    Two or three seeds, or a few groups of images, hardly tell how much they vary: with those it is Student's t about
    the difference itself, with the degrees of freedom of Satterthwaite (1946). The mean of g groups out of g varies by
    (g - 1) / g of what it should (Rao and Wu 1988). The variances of images and of seeds are added, although what a
    seed does to some images is in both: rather too wide than too narrow.
    """
    several = [side for side in (one, other) if len(side) > 1]
    parts: list[tuple[float, float]] = [(side.var(ddof=1) / len(side), len(side) - 1) for side in several]
    if not parts and groups is None:
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Interval(float(low), float(high))
    difference = float(one.mean() - other.mean())
    if groups is not None and (groups < 2 or (difference and np.ptp(drawn) < EXACT)):  # which tell nothing of others
        return Interval(-1.0, 1.0)
    parts.append((drawn.var(), MANY) if groups is None else (drawn.var() * groups / (groups - 1), groups - 1))
    variance = sum(part for part, _ in parts)
    spread = sum(part**2 / max(freedom, 1) for part, freedom in parts)
    freedom = variance**2 / spread if spread else MANY
    wide = float(stdtrit(freedom, (1 + LEVEL) / 2) * variance**0.5)
    return Interval(difference - wide, difference + wide)


def mcnemar(one: np.ndarray, other: np.ndarray) -> float:
    """The exact p-value of McNemar's test, two-sided: of the images that only one of two runs gets right, how uneven
    is their split between the two? bool [N] each."""
    first, second = int((one & ~other).sum()), int((~one & other).sum())
    return min(1.0, 2 * sum(_of_coins(first + second, i) for i in range(min(first, second) + 1)))


def _of_coins(coins: int, heads: int) -> float:
    """The probability of so many heads. By logarithms: whole numbers of ten thousand coins have thousands of digits."""
    ways = math.lgamma(coins + 1) - math.lgamma(heads + 1) - math.lgamma(coins - heads + 1)
    return math.exp(ways - coins * math.log(2))
