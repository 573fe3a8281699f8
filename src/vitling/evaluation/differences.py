"""Is one run better than another, or was it luck? Intervals and tests on the same images. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 4_000
SLOW_DRAWS = 300  # of a statistic that has to be computed anew for each
LEVEL = 0.95
BLOCK = 1 << 24  # drawn numbers held at once

Statistic = Callable[[np.ndarray], float]


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
    images = one.shape[1]
    kinds, counts = np.unique(np.concatenate([one, other]), axis=1, return_counts=True)  # by who gets an image right
    found: list[np.ndarray] = []
    at_once = max(1, BLOCK // len(counts))
    for start in range(0, draws, at_once):
        some = min(at_once, draws - start)
        drawn = random.multinomial(images, counts / images, size=some)  # how many images of each kind
        groups = np.split(drawn @ kinds.T / images, [len(one)], axis=1)  # the share that each seed gets right
        means = [(right * _shares(right.shape[1], some, random)).sum(axis=1) for right in groups]
        found.append(means[0] - means[1])
    return _percentiles(np.concatenate(found))


def statistic_interval(
    one: Sequence[Statistic], other: Sequence[Statistic], images: int, draws: int = SLOW_DRAWS, seed: int = 0
) -> Interval:
    """The same for any statistic of the drawn images, such as mean average precision: one function for each seed."""
    random = np.random.default_rng(seed)

    def mean(group: Sequence[Statistic], drawn: np.ndarray) -> float:
        return sum(share * of(drawn) for of, share in zip(group, _shares(len(group), 1, random)[0]) if share)

    found = []
    for _ in range(draws):
        drawn = random.integers(0, images, images)
        found.append(mean(one, drawn) - mean(other, drawn))
    return _percentiles(np.array(found))


def _shares(seeds: int, draws: int, random: np.random.Generator) -> np.ndarray:
    """[draws, seeds]: how much each seed counts. One fewer is drawn than there are: the mean of n draws from n varies
    by (n - 1) / n of what it should, which is a third too little for three (Rao and Wu 1988)."""
    drawn = max(1, seeds - 1)
    return random.multinomial(drawn, np.full(seeds, 1 / seeds), size=draws) / drawn


def _percentiles(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def mcnemar(one: np.ndarray, other: np.ndarray) -> float:
    """The exact p-value of McNemar's test, two-sided: of the images that only one of two runs gets right, how uneven
    is their split between the two? bool [N] each."""
    first, second = int((one & ~other).sum()), int((~one & other).sum())
    return min(1.0, 2 * sum(_of_coins(first + second, i) for i in range(min(first, second) + 1)))


def _of_coins(coins: int, heads: int) -> float:
    """The probability of so many heads. By logarithms: whole numbers of ten thousand coins have thousands of digits."""
    ways = math.lgamma(coins + 1) - math.lgamma(heads + 1) - math.lgamma(coins - heads + 1)
    return math.exp(ways - coins * math.log(2))
