from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, t

from vitling.evaluation.intervals import format_interval, mean_interval, wilson_interval


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (23, 36), (115, 180), (1, 1000)])
def test_wilson_interval_is_scipys(hits, n):
    low, high = binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits / n, n) == pytest.approx((low, high))


def test_wilson_interval_solves_its_definition():
    """All p with |accuracy - p| <= 1.96 sqrt(p (1 - p) / n), on a grid."""
    p = np.linspace(0, 1, 100_001)
    inside = p[np.abs(23 / 36 - p) <= 1.959964 * np.sqrt(p * (1 - p) / 36)]
    assert wilson_interval(23 / 36, 36) == pytest.approx((inside.min(), inside.max()), abs=1e-4)


def test_interval_of_a_mean_is_scipys():
    values = [0.2, 0.5, 0.4, 0.9]
    expected = t.interval(0.95, 3, loc=np.mean(values), scale=np.std(values, ddof=1) / 2)
    assert mean_interval(values) == pytest.approx(tuple(np.clip(expected, 0, 1)))
    assert mean_interval([0.5]) is None
    assert mean_interval([0.0, 0.0, 0.0]) == wilson_interval(0.0, 3)


def test_format():
    assert format_interval(23 / 36, 36) == "48-78"
    assert format_interval(0.9, 100_000) == "89.8-90.2"
