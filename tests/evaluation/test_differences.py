"""Intervals and tests beside their textbook values."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_ind

from vitling.evaluation.differences import DRAWS, bootstrap_difference, bootstrap_statistic, mcnemar_p


def rights(seed, *shares, images=2000):
    random = np.random.default_rng(seed)
    return [random.random((1, images)) < share for share in shares]


def test_the_interval_of_one_seed_is_that_of_the_paired_difference():
    one, other = rights(0, 0.8, 0.7)
    found = bootstrap_difference(one, other)
    apart = one[0].astype(float) - other[0]
    wide = 1.96 * apart.std() / len(apart) ** 0.5
    assert found.low == pytest.approx(apart.mean() - wide, abs=0.003)
    assert found.high == pytest.approx(apart.mean() + wide, abs=0.003)
    assert not found.has_zero
    assert bootstrap_difference(one, one) == (0, 0)


def test_images_are_drawn_the_same_for_both():
    """Two runs with the same errors but one image: the interval is as narrow as that, however hard the images are."""
    one = rights(1, 0.5)[0]
    other = one.copy()
    other[0, 0] = ~other[0, 0]
    found = bootstrap_difference(one, other)
    assert found.high - found.low < 0.003


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """The truth here is no difference: 200 pairs of runs."""
    held = [bootstrap_difference(*rights(i, 0.6, 0.6, images=300), draws=400).has_zero for i in range(200)]
    assert 0.90 <= np.mean(held) <= 0.99


def test_seeds_that_differ_widen_it():
    steady = np.concatenate(rights(2, 0.7, 0.7, 0.7))
    shaky = np.concatenate(rights(2, 0.6, 0.7, 0.8))
    other = np.concatenate(rights(3, 0.7, 0.7, 0.7))
    narrow, wide = (bootstrap_difference(group, other) for group in (steady, shaky))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_draws_in_parts_are_draws(monkeypatch):
    one, other = rights(4, 0.8, 0.75)
    whole = bootstrap_difference(one, other)
    monkeypatch.setattr("vitling.evaluation.differences.BLOCK", 4 * (DRAWS // 3))
    parts = bootstrap_difference(one, other)
    assert parts.low == pytest.approx(whole.low, abs=0.003)


def seeds_that_differ(random, seeds, images=2000, deviation=200):
    """Far more than their images do."""
    return np.arange(images) < random.normal(images / 2, deviation, (seeds, 1))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_of_seeds_that_differ_it_is_students_interval(seeds):
    random = np.random.default_rng(6)
    one, other = (seeds_that_differ(random, seeds, 20_000, 4_000) for _ in range(2))
    found = bootstrap_difference(one, other)
    expected = ttest_ind(one.mean(axis=1), other.mean(axis=1), equal_var=False).confidence_interval(0.95)
    assert found == pytest.approx(tuple(expected), abs=0.02)


@pytest.mark.parametrize("seeds", [2, 3])
def test_luck_with_seeds_is_not_taken_for_a_difference(seeds):
    random = np.random.default_rng(8)
    pairs = ([seeds_that_differ(random, seeds) for _ in range(2)] for _ in range(200))
    held = [bootstrap_difference(*pair, draws=100).has_zero for pair in pairs]
    assert np.mean(held) >= 0.92


def test_images_of_a_group_are_drawn_together():
    """Thirty images that are right or wrong together are as good as one."""
    random = np.random.default_rng(9)
    groups = random.permutation(np.repeat(np.arange(20), 30))

    def pair():
        return [(random.random(20) < 0.7)[None] for _ in range(2)]

    held = [bootstrap_difference(*(side[:, groups] for side in pair()), groups, draws=100).has_zero for _ in range(200)]
    assert np.mean(held) >= 0.92
    one, other = pair()
    as_one, each = bootstrap_difference(one[:, groups], other[:, groups], groups), bootstrap_difference(one, other)
    assert as_one.high - as_one.low == pytest.approx(2.093 / 1.96 * (each.high - each.low), rel=0.1)  # t of 19
    alone = bootstrap_difference(one, other, np.arange(20))
    assert alone == pytest.approx(as_one, abs=0.02)


@pytest.mark.parametrize("groups", [3, 5])
def test_few_groups_are_not_made_too_much_of(groups):
    random = np.random.default_rng(11)
    of = np.repeat(np.arange(groups), 40)

    def side():
        hard = random.normal(0, 1, groups)[of] + random.normal(0, 1, len(of))
        return (hard > 0)[None]

    held = [bootstrap_difference(side(), side(), of, draws=200).has_zero for _ in range(400)]
    assert np.mean(held) >= 0.93


def test_of_one_group_nothing_can_be_told():
    one, other = np.arange(40)[None] < 22, np.arange(40)[None] < 20
    assert bootstrap_difference(one, other, np.zeros(40)).has_zero
    alike = np.repeat(np.arange(2), 20)  # two groups, with the same difference
    assert bootstrap_difference(
        np.tile(np.arange(20) < 9, 2)[None], np.tile(np.arange(20) < 8, 2)[None], alike
    ).has_zero


def test_any_statistic_of_groups_and_of_draws_without_one():
    random = np.random.default_rng(10)
    groups = np.repeat(np.arange(12), 5)
    one, other = ((random.random((1, 12)) < share)[:, groups] for share in (0.8, 0.5))
    found, expected = (
        bootstrap_statistic(means(one), means(other), 60, groups),
        bootstrap_difference(one, other, groups),
    )
    assert found == pytest.approx(expected, abs=0.05)
    rare = np.arange(60) == 0

    def defined_with_it(right):
        return [lambda images: right[0, images].mean() if rare[images].any() else np.nan]

    assert np.isfinite(bootstrap_statistic(defined_with_it(one), defined_with_it(other), 60)).all()


def means(answers):
    return [lambda images, right=right: right[images].mean() for right in answers]


def test_any_statistic():
    one, other = rights(5, 0.8, 0.7)
    found = bootstrap_statistic(means(one), means(other), one.shape[1])
    expected = bootstrap_difference(one, other)
    assert found.low == pytest.approx(expected.low, abs=0.01)
    assert found.high == pytest.approx(expected.high, abs=0.01)


def test_any_statistic_of_several_seeds():
    shaky, other = np.concatenate(rights(2, 0.6, 0.7, 0.8)), np.concatenate(rights(3, 0.7, 0.7, 0.7))
    found, expected = bootstrap_statistic(means(shaky), means(other), 2000), bootstrap_difference(shaky, other)
    assert found.low == pytest.approx(expected.low, abs=0.02)
    assert found.high == pytest.approx(expected.high, abs=0.02)


def test_as_many_images_as_imagenet_has_take_no_time():
    one, other = (right[0] for right in rights(7, 0.5, 0.5, images=50_000))
    began = time.perf_counter()
    assert 0 < mcnemar_p(one, other) < 1
    bootstrap_difference(one[None], other[None])
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(("only_one", "only_other"), [(0, 0), (1, 0), (5, 5), (3, 12), (40, 17), (700, 600)])
def test_mcnemar_is_the_binomial_test_of_what_they_disagree_on(only_one, only_other):
    one = np.array([True] * only_one + [False] * only_other + [True] * 20)
    other = np.array([False] * only_one + [True] * only_other + [True] * 20)
    disagreed = only_one + only_other
    expected = binomtest(only_one, disagreed).pvalue if disagreed else 1.0
    assert mcnemar_p(one, other) == pytest.approx(expected)
    assert mcnemar_p(other, one) == pytest.approx(expected)
