from __future__ import annotations

import math

import pytest
import torch

from vitling.errors import RunAborted
from vitling.evaluation.familiarity import (
    DIRECTIONS,
    SHRINKAGE,
    ImageSummary,
    calibrate_familiarity,
    choose_threshold,
    count_pixel_features,
    fit_familiarity,
    fit_gaussian,
    make_signals,
    summarise_map,
    summarise_pixels,
)

CLASSES = 5


def draw(n, centre=0.0, dim=40, seed=0):
    """Draw features with a few directions of large variance."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(3, dim, generator=torch.Generator().manual_seed(9))
    return centre + torch.randn(n, 3, generator=generator) @ mixing + 0.1 * torch.randn(n, dim, generator=generator)


def draw_features(n, maps=0.0, pixels=0.0, seed=0):
    return ImageSummary(draw(n, maps, seed=seed), draw(n, pixels, dim=6, seed=seed + 100))


def draw_logits(n, certainty, seed=0):
    return certainty * torch.randn(n, CLASSES, generator=torch.Generator().manual_seed(seed))


# --- distances --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [30, 300])
def test_distance_matches_a_literal_version(images):
    """The covariance that the model stands for, written out and inverted."""
    known, new = draw(images).double(), draw(10, seed=1).double()
    mean, scale = known.mean(0), known.var(0, correction=0).sqrt()
    centred = (known - mean) / scale
    values, vectors = torch.linalg.eigh(centred.T @ centred / images)
    kept = min(DIRECTIONS, images // 4)
    values[:-kept] = values[:-kept].mean()
    values = (1 - SHRINKAGE) * values + SHRINKAGE * values.mean()
    inverse = torch.linalg.inv(vectors @ torch.diag(values) @ vectors.T)
    expected = [(x - mean) / scale @ inverse @ ((x - mean) / scale) / 40 for x in new]
    torch.testing.assert_close(fit_gaussian(known).measure(new).double(), torch.stack(expected), rtol=1e-3, atol=1e-4)


def test_units_of_features_do_not_matter():
    units = torch.logspace(-3, 3, 40)
    known, new = draw(200), draw(20, seed=1)
    torch.testing.assert_close(
        fit_gaussian(known).measure(new), fit_gaussian(known * units).measure(new * units), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("images", [1, 2, 5])
def test_few_images_and_features_that_never_vary(images):
    distances = fit_gaussian(torch.ones(images, 6)).measure(torch.stack([torch.ones(6), torch.zeros(6)]))
    assert distances.isfinite().all()
    assert distances[0] < distances[1]


def test_features_that_are_not_finite_end_the_run():
    with pytest.raises(RunAborted, match="not finite"):
        fit_gaussian(torch.full((4, 3), torch.nan))


# --- signals together -------------------------------------------------------------------------------------------------


def test_strangeness_matches_a_literal_version():
    familiarity, held, new = fit_familiarity(draw_features(200)), draw_features(50, seed=1), draw_features(20, seed=2)
    known = make_signals(familiarity.measure_distances(held), draw_logits(50, 3.0))
    familiarity = calibrate_familiarity(familiarity, known)
    found = familiarity.combine(familiarity.measure_signals(new, draw_logits(20, 3.0, seed=5)))
    signals = make_signals(familiarity.measure_distances(new), draw_logits(20, 3.0, seed=5))
    for image, strangeness in zip(signals, found):
        expected = 0.0
        for signal, value in enumerate(image):
            stranger = sum(float(other[signal]) >= float(value) for other in known)
            expected -= math.log((stranger + 1) / (len(known) + 1))
        assert float(strangeness) == pytest.approx(expected, rel=1e-5)


def test_entropy_is_that_of_the_probabilities():
    logits = draw_logits(4, 2.0)
    found = make_signals(torch.zeros(4, 2), logits)[:, 2]
    for row, entropy in zip(logits, found):
        p = [math.exp(x) / sum(math.exp(y) for y in row) for x in row]
        assert float(entropy) == pytest.approx(-sum(x * math.log(x) for x in p), rel=1e-5)
    assert make_signals(torch.zeros(4, 2), None).shape == (4, 2)  # several labels per image


@pytest.mark.parametrize("with_classes", [True, False])
def test_each_signal_is_enough_and_a_twentieth_of_the_known_images_are_marked(with_classes):
    def logits(n, certainty, seed=0):
        return draw_logits(n, certainty, seed) if with_classes else None

    familiarity = fit_familiarity(draw_features(300))
    distances = familiarity.measure_distances(draw_features(400, seed=1))
    familiarity = calibrate_familiarity(familiarity, make_signals(distances, logits(400, 20.0)))

    def mark(n, certainty=20.0, **where):
        return familiarity.find_unfamiliar(draw_features(n, **where), logits(n, certainty, 7)).double().mean()

    assert 0.02 < mark(2000, seed=2) < 0.09
    assert mark(200, maps=1.0, seed=3) > 0.9
    assert mark(200, pixels=3.0, seed=3) > 0.7
    if with_classes:
        assert mark(200, certainty=0.01, seed=3) > 0.7


@pytest.mark.parametrize("count", [20, 50, 200])
def test_few_held_out_images_give_no_more_false_alarms(count):
    familiarity, rates = fit_familiarity(draw_features(20)), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        held_out, new = torch.rand(count, 3, generator=generator), torch.rand(50, 3, generator=generator)
        calibrated = calibrate_familiarity(familiarity, held_out)
        rates.append((calibrated.combine(new) > calibrated.threshold).double().mean())
    assert 0.02 < torch.stack(rates).mean() < 0.06


def test_an_empty_channel_does_not_depend_on_rounding():
    images = torch.rand(40, 3, 32, 32)
    images[:, 2] = -2.1179
    known = summarise_pixels(images)
    rounded = known.clone()
    rounded[:, 2] += 3e-7
    gaussian = fit_gaussian(known)
    torch.testing.assert_close(gaussian.measure(rounded), gaussian.measure(known), rtol=0.05, atol=0.05)


def test_threshold():
    assert choose_threshold(torch.arange(19.0)) == 18
    assert choose_threshold(torch.arange(39.0)) == 37
    assert choose_threshold(torch.tensor([0.3])) == pytest.approx(0.3)  # of few images the largest


# --- features ---------------------------------------------------------------------------------------------------------


def test_map_is_summarised_per_channel():
    grid = torch.randn(2, 3, 4, 5)
    found = summarise_map(grid)
    for image, row in zip(grid, found):
        means = [float(channel.mean()) for channel in image]
        stds = [float(((channel - channel.mean()) ** 2).mean().sqrt()) for channel in image]
        assert row.tolist() == pytest.approx(means + stds, abs=1e-6)


@pytest.mark.parametrize(("size", "channels", "count"), [(32, 3, 15), (33, 1, 5), (224, 3, 21), (7, 3, 6), (8, 2, 6)])
def test_pixel_features_are_as_many_as_counted(size, channels, count):
    assert count_pixel_features(size, channels) == count
    assert summarise_pixels(torch.randn(2, channels, size, size)).shape == (2, count)


def test_contrast_is_found_at_its_scale():
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    checks = [((y // side + x // side) % 2).float()[None] for side in (1, 2, 4)]
    found = summarise_pixels(torch.stack([*checks, torch.zeros(1, 32, 32)]))
    assert [int(row[2:].argmax()) for row in found[:3]] == [0, 1, 2]
    assert found[0, 2] == pytest.approx(math.log(0.5), abs=1e-3)  # all contrast is lost by halving it
    assert found.isfinite().all()


def test_an_enlarged_image_has_no_fine_contrast():
    small = torch.rand(8, 3, 16, 16)
    enlarged = torch.nn.functional.interpolate(small, size=64, mode="bilinear")
    sharp = torch.rand(8, 3, 64, 64)
    assert summarise_pixels(enlarged)[:, 6:9].max() < summarise_pixels(sharp)[:, 6:9].min() - 1
