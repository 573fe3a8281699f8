"""Is one run better than another, or was it luck? Intervals and tests on the same images. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

DRAWS = 4_000
SLOW_DRAWS = 300  # of a statistic that has to be computed anew for each
LEVEL = 0.95
BLOCK = 1 << 24  # drawn numbers held at once


class Interval(NamedTuple):
    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


def difference_interval(one: np.ndarray, other: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Interval:
    """Of mean(one) - mean(other), by the bootstrap: bool [seeds, N] each, of the same N images in the same order.

    Images are drawn anew, the same ones for both; and so are seeds, from each group that has several. With one seed a
    group, what another seed would give is not in the interval.
    """
    random = np.random.default_rng(seed)
    one, other = one.astype(np.float64), other.astype(np.float64)
    images = one.shape[1]
    found: list[np.ndarray] = []
    at_once = max(1, BLOCK // images)
    for start in range(0, draws, at_once):
        some = min(at_once, draws - start)
        weights = random.multinomial(images, np.full(images, 1 / images), size=some)  # how often each image is drawn
        found.append((_drawn(one, weights, random) - _drawn(other, weights, random)) / images)
    return _percentiles(np.concatenate(found))


def _drawn(right: np.ndarray, weights: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """[draws]: sums over the drawn images, averaged over the drawn seeds."""
    seeds = len(right)
    chosen = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(weights)) / seeds
    return ((weights @ right.T) * chosen).sum(axis=1)


def statistic_interval(
    difference: Callable[[np.ndarray], float], images: int, draws: int = SLOW_DRAWS, seed: int = 0
) -> Interval:
    """Of any difference that is a function of the drawn images, such as one of mean average precisions."""
    random = np.random.default_rng(seed)
    return _percentiles(np.array([difference(random.integers(0, images, images)) for _ in range(draws)]))


def _percentiles(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def mcnemar(one: np.ndarray, other: np.ndarray) -> float:
    """The exact p-value of McNemar's test, two-sided: of the images that only one of two runs gets right, how uneven
    is their split between the two? bool [N] each."""
    first, second = int((one & ~other).sum()), int((~one & other).sum())
    disagreed = first + second
    tail = sum(math.comb(disagreed, i) for i in range(min(first, second) + 1))
    return min(1.0, 2 * tail / 2**disagreed)
