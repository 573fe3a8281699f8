from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom

from vitling.errors import UserError
from vitling.evaluation.config import check_coverage
from vitling.evaluation.conformal import compute_scores, find_threshold, make_sets, summarise_sets


def draw(n, classes=6, factor=1.0, seed=0):
    """Draw labels from softmax(logits), and logits that are too large by `factor`: the sets must not need good ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator)
    return factor * logits, logits.softmax(1).multinomial(1, generator=generator)[:, 0]


def make_literal_set(row, scores, coverage):
    """Return the set by its definition: a class is in it unless too few known scores are as high as its own."""
    probabilities = row.double().softmax(0)
    inside = set()
    for c, p in enumerate(probabilities.tolist()):
        lower = sum(score < -math.log(p) - 1e-12 for score in scores.tolist())
        if lower < math.ceil((len(scores) + 1) * coverage - 1e-9):
            inside.add(c)
    return inside | {int(probabilities.argmax())}


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("n", [19, 60])
def test_sets_match_the_definition(n, coverage):
    known, labels = draw(n)
    scores = compute_scores(known, labels)
    new, _ = draw(40, seed=1)
    sets = make_sets(new, find_threshold(scores, coverage))
    for row, found in zip(new, sets):
        assert set(torch.nonzero(found)[:, 0].tolist()) == make_literal_set(row, scores, coverage)


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_coverage_lies_within_the_binomial_interval(coverage, factor):
    """A set for one new image from 60 scores, drawn anew 3,000 times: the hits follow a binomial distribution."""
    n, repeats = 60, 3000
    logits, labels = draw((n + 1) * repeats, factor=factor)
    hits = 0
    for known, truth in zip(logits.view(repeats, n + 1, -1), labels.view(repeats, n + 1)):
        threshold = find_threshold(compute_scores(known[:n], truth[:n]), coverage)
        hits += int(make_sets(known[n:], threshold)[0, truth[n]])
    wanted = math.ceil((n + 1) * coverage) / (n + 1)  # what split conformal prediction has exactly, without ties
    low, high = binom.interval(0.999, repeats, wanted)
    assert hits >= low
    if factor == 1.0 and coverage == 0.95:  # the class that is always in the set adds nothing here
        assert hits <= high


def test_too_few_images_name_the_highest_coverage():
    with pytest.raises(UserError, match=r"needs the scores of 19 held-out images, and the model has 9; .* 0\.9\."):
        find_threshold(torch.arange(9.0), 0.95)
    assert find_threshold(torch.arange(9.0), 0.9) == 8
    assert find_threshold(torch.arange(19.0), 0.95) == 18
    with pytest.raises(UserError, match="between 0 and 1"):
        check_coverage(95)


def test_no_set_is_empty_and_one_class_is_enough():
    assert make_sets(torch.zeros(3, 4), -1.0).sum(dim=1).tolist() == [1, 1, 1]
    assert make_sets(torch.zeros(3, 1), 0.0).all()


def test_summary():
    sets = torch.tensor([[True, False], [True, True], [False, True], [True, False]])
    found = summarise_sets(sets, torch.tensor([0, 1, 0, 0]))
    assert found["covered"] == 0.75
    assert found["mean_size"] == 1.25
    assert found["single"] == 0.75
    assert found["covered_interval"][0] < 0.75 < found["covered_interval"][1]
