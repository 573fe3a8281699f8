from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitling.errors import RunAborted
from vitling.evaluation.familiarity import (
    DIRECTIONS,
    choose_threshold,
    fit_familiarity,
    summarise_map,
)


def draw(n, centre=0.0, dim=40, seed=0):
    """Draw features with a few directions of large variance."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(3, dim, generator=torch.Generator().manual_seed(9))
    return centre + torch.randn(n, 3, generator=generator) @ mixing + 0.1 * torch.randn(n, dim, generator=generator)


@pytest.mark.parametrize("images", [30, 300])
def test_distance_matches_a_literal_version(images):
    """The covariance that the model stands for, written out and inverted."""
    known, new = draw(images).double(), draw(10, seed=1).double()
    centred = known - known.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / images)
    kept = min(DIRECTIONS, images // 4)
    values[:-kept] = values[:-kept].mean()
    covariance = vectors @ torch.diag(values) @ vectors.T
    expected = [(x - known.mean(0)) @ torch.linalg.inv(covariance) @ (x - known.mean(0)) / 40 for x in new]
    torch.testing.assert_close(
        fit_familiarity(known).measure(new).double(), torch.stack(expected), rtol=1e-3, atol=1e-4
    )


def test_other_images_are_unfamiliar_and_a_twentieth_of_the_known_ones():
    familiarity = fit_familiarity(draw(300))
    familiarity = replace(familiarity, threshold=choose_threshold(familiarity.measure(draw(400, seed=1))))
    assert 0.02 < familiarity.find_unfamiliar(draw(2000, seed=2)).double().mean() < 0.09
    assert familiarity.find_unfamiliar(draw(200, centre=1.0, seed=3)).all()


@pytest.mark.parametrize("images", [1, 2, 5])
def test_few_images_and_features_that_never_vary(images):
    familiarity = fit_familiarity(torch.ones(images, 6))
    distances = familiarity.measure(torch.stack([torch.ones(6), torch.zeros(6)]))
    assert distances.isfinite().all()
    assert distances[0] < distances[1]


def test_threshold():
    assert choose_threshold(torch.arange(19.0)) == 18
    assert choose_threshold(torch.arange(39.0)) == 37
    assert choose_threshold(torch.tensor([0.3])) == pytest.approx(0.3)  # of few images the largest


def test_map_is_summarised_per_channel():
    grid = torch.randn(2, 3, 4, 5)
    found = summarise_map(grid)
    for image, row in zip(grid, found):
        means = [float(channel.mean()) for channel in image]
        stds = [float(((channel - channel.mean()) ** 2).mean().sqrt()) for channel in image]
        assert row.tolist() == pytest.approx(means + stds, abs=1e-6)


def test_features_that_are_not_finite_end_the_run():
    with pytest.raises(RunAborted, match="not finite"):
        fit_familiarity(torch.full((4, 3), torch.nan))
