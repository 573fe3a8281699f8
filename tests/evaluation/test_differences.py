"""Confidence intervals and tests, compared with their textbook values."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_ind

from vitling.evaluation.differences import DRAWS, bootstrap_difference, bootstrap_statistic, mcnemar_p


def draw_correct(seed, *accuracies, images=2000):
    random = np.random.default_rng(seed)
    return [random.random((1, images)) < accuracy for accuracy in accuracies]


def test_interval_of_one_seed_matches_the_paired_difference():
    one, other = draw_correct(0, 0.8, 0.7)
    found = bootstrap_difference(one, other)
    apart = one[0].astype(float) - other[0]
    wide = 1.96 * apart.std() / len(apart) ** 0.5
    assert found.low == pytest.approx(apart.mean() - wide, abs=0.003)
    assert found.high == pytest.approx(apart.mean() + wide, abs=0.003)
    assert not found.has_zero


def test_runs_that_agree_on_few_images_have_a_wide_interval():
    """Agresti and Min (2005): half an image is added to each of the four cells."""
    few = np.ones((1, 11), bool)
    cells = np.array([11, 0, 0, 0]) + 0.5  # both right, only one, only the other, neither
    wide = 1.959964 * ((cells[1] + cells[2]) - (cells[1] - cells[2]) ** 2 / cells.sum()) ** 0.5 / cells.sum()
    assert bootstrap_difference(few, few) == pytest.approx((-wide, wide))
    many = draw_correct(0, 0.8, images=2000)[0]
    low, high = bootstrap_difference(many, many)
    assert -0.001 < low < 0 < high < 0.001


@pytest.mark.parametrize("seeds", [(3, 3), (2, 1)])
def test_seeds_that_agree_on_few_images_have_a_wide_interval(seeds):
    one, other = (np.ones((count, 11), bool) for count in seeds)
    assert bootstrap_difference(one, other) == pytest.approx((-1.959964 / 13, 1.959964 / 13))


def test_groups_that_agree_have_a_wide_interval():
    right, groups = np.ones((1, 40), bool), np.arange(40) // 10
    assert bootstrap_difference(right, right, groups) == pytest.approx((-1.959964 / 6, 1.959964 / 6))


def test_differences_stay_within_one():
    right = np.ones((1, 3), bool)
    assert bootstrap_difference(right, ~right).high == 1.0


def test_both_sides_draw_the_same_images():
    """Two runs that differ on one image have a narrow interval, however hard the images are."""
    one = draw_correct(1, 0.5)[0]
    other = one.copy()
    other[0, 0] = ~other[0, 0]
    found = bootstrap_difference(one, other)
    assert found.high - found.low < 0.003


def test_interval_has_its_nominal_coverage():
    """The true difference is 0, in 200 pairs of runs."""
    held = [bootstrap_difference(*draw_correct(i, 0.6, 0.6, images=300), draws=400).has_zero for i in range(200)]
    assert 0.90 <= np.mean(held) <= 0.99


def test_varying_seeds_widen_the_interval():
    steady = np.concatenate(draw_correct(2, 0.7, 0.7, 0.7))
    shaky = np.concatenate(draw_correct(2, 0.6, 0.7, 0.8))
    other = np.concatenate(draw_correct(3, 0.7, 0.7, 0.7))
    narrow, wide = (bootstrap_difference(group, other) for group in (steady, shaky))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_draws_in_blocks_are_equivalent(monkeypatch):
    one, other = draw_correct(4, 0.8, 0.75)
    whole = bootstrap_difference(one, other)
    monkeypatch.setattr("vitling.evaluation.differences.BLOCK", 4 * (DRAWS // 3))
    parts = bootstrap_difference(one, other)
    assert parts.low == pytest.approx(whole.low, abs=0.003)


def draw_varying_seeds(random, seeds, images=2000, deviation=200):
    """Draw runs whose seeds vary far more than their images."""
    return np.arange(images) < random.normal(images / 2, deviation, (seeds, 1))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_varying_seeds_give_students_interval(seeds):
    random = np.random.default_rng(6)
    one, other = (draw_varying_seeds(random, seeds, 20_000, 4_000) for _ in range(2))
    found = bootstrap_difference(one, other)
    expected = ttest_ind(one.mean(axis=1), other.mean(axis=1), equal_var=False).confidence_interval(0.95)
    assert found == pytest.approx(tuple(np.clip(expected, -1, 1)), abs=0.02)


@pytest.mark.parametrize("seeds", [2, 3])
def test_variation_between_seeds_is_not_a_difference(seeds):
    random = np.random.default_rng(8)
    pairs = ([draw_varying_seeds(random, seeds) for _ in range(2)] for _ in range(200))
    held = [bootstrap_difference(*pair, draws=100).has_zero for pair in pairs]
    assert np.mean(held) >= 0.92


def test_images_of_a_group_are_drawn_together():
    """Thirty images that are right or wrong together count as one."""
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
def test_few_groups_have_nominal_coverage(groups):
    random = np.random.default_rng(11)
    of = np.repeat(np.arange(groups), 40)

    def side():
        hard = random.normal(0, 1, groups)[of] + random.normal(0, 1, len(of))
        return (hard > 0)[None]

    held = [bootstrap_difference(side(), side(), of, draws=200).has_zero for _ in range(400)]
    assert np.mean(held) >= 0.93


def test_one_group_shows_no_difference():
    one, other = np.arange(40)[None] < 22, np.arange(40)[None] < 20
    assert bootstrap_difference(one, other, np.zeros(40)).has_zero
    alike = np.repeat(np.arange(2), 20)  # two groups, with the same difference
    assert bootstrap_difference(
        np.tile(np.arange(20) < 9, 2)[None], np.tile(np.arange(20) < 8, 2)[None], alike
    ).has_zero


def test_statistic_of_groups_and_undefined_draws():
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
    one, other = draw_correct(5, 0.8, 0.7)
    found = bootstrap_statistic(means(one), means(other), one.shape[1])
    expected = bootstrap_difference(one, other)
    assert found.low == pytest.approx(expected.low, abs=0.01)
    assert found.high == pytest.approx(expected.high, abs=0.01)


def test_statistic_of_several_seeds():
    shaky, other = np.concatenate(draw_correct(2, 0.6, 0.7, 0.8)), np.concatenate(draw_correct(3, 0.7, 0.7, 0.7))
    found, expected = bootstrap_statistic(means(shaky), means(other), 2000), bootstrap_difference(shaky, other)
    assert found.low == pytest.approx(expected.low, abs=0.02)
    assert found.high == pytest.approx(expected.high, abs=0.02)


def test_images_with_equal_answers_are_drawn_together():
    one, other = (right[0] for right in draw_correct(7, 0.5, 0.5, images=50_000))
    differences, random, draws = one.astype(float) - other, np.random.default_rng(0), DRAWS // 10
    image_by_image = cpu_seconds(lambda: [random.choice(differences, len(one)).mean() for _ in range(draws)]) / draws
    assert 0 < mcnemar_p(one, other) < 1
    assert cpu_seconds(lambda: bootstrap_difference(one[None], other[None])) / DRAWS < image_by_image / 4


def cpu_seconds(work):
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.parametrize(("only_one", "only_other"), [(0, 0), (1, 0), (5, 5), (3, 12), (40, 17), (700, 600)])
def test_mcnemar_matches_the_binomial_test_on_disagreements(only_one, only_other):
    one = np.array([True] * only_one + [False] * only_other + [True] * 20)
    other = np.array([False] * only_one + [True] * only_other + [True] * 20)
    disagreed = only_one + only_other
    expected = binomtest(only_one, disagreed).pvalue if disagreed else 1.0
    assert mcnemar_p(one, other) == pytest.approx(expected)
    assert mcnemar_p(other, one) == pytest.approx(expected)
