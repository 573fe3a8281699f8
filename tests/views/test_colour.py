"""Colour operations against PIL and torchvision on photographs, with the same numbers."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import stats
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as reference

from tests.views.photos import PHOTOS, as_batch, errors, psnr
from vitling.views import Draws, colour, planes, tables
from vitling.views.blur import blur, draw_blur

photos = pytest.mark.parametrize("photo", PHOTOS, ids=["china", "flower"])
N = 10_000
DRAWS = Draws.from_ids([17], torch.arange(N))


def close(ours: torch.Tensor, theirs) -> bool:
    mean, high = errors(ours, theirs)
    return mean <= 1 and high <= 3


@photos
@pytest.mark.parametrize("factor", [0.0, 0.2, 0.9, 1.4, 1.9])
def test_blends(photo, factor):
    x, image, f = as_batch(photo), Image.fromarray(photo), torch.tensor([factor])
    assert close(colour.blend(x, torch.zeros_like(x), f), reference.adjust_brightness(image, factor))
    assert close(colour.blend(x, colour.mean_grey(x), f), reference.adjust_contrast(image, factor))
    assert close(colour.blend(x, colour.grey(x), f), reference.adjust_saturation(image, factor))
    assert close(colour.blend(x, colour.smooth(x), f), ImageEnhance.Sharpness(image).enhance(factor))


@photos
@pytest.mark.parametrize("turns", [-0.5, -0.2, 0.0, 0.05, 0.4])
def test_hue(photo, turns):
    theirs = reference.adjust_hue(torch.from_numpy(photo).permute(2, 0, 1), turns).permute(1, 2, 0).numpy()
    assert close(colour.shift_hue(as_batch(photo), torch.tensor([turns])), theirs)


@photos
def test_grey_and_solarise(photo):
    x, image, yes = as_batch(photo), Image.fromarray(photo), torch.tensor([True])
    assert close(colour.to_grey(x, yes), image.convert("L").convert("RGB"))
    assert close(colour.solarise(x, yes), ImageOps.solarize(image, 128))
    assert torch.equal(colour.to_grey(x, ~yes), x)
    assert torch.equal(colour.solarise(x, ~yes), x)


@photos
def test_tables_match_pil(photo):
    dull = (photo * 0.4 + 40).astype(np.uint8)
    for array in (photo, dull):
        x, image = as_batch(array), Image.fromarray(array)
        pairs = [
            (tables.invert(x.device), ImageOps.invert(image)),
            (tables.autocontrast(x), ImageOps.autocontrast(image)),
            (tables.equalise(x), ImageOps.equalize(image)),
            *((tables.posterise(torch.tensor([float(b)])), ImageOps.posterize(image, b)) for b in (1, 4, 8)),
            *((tables.solarise(torch.tensor([float(t)])), ImageOps.solarize(image, t)) for t in (0, 77, 256)),
        ]
        for table, theirs in pairs:
            mean, high = errors(tables.look_up(x, table), theirs)
            assert high == 0
            assert mean < 1e-4  # one value of 256 may round the other way


def test_tables_keep_a_constant_image():
    plain = torch.full((1, 3, 8, 8), 77.0)
    assert torch.equal(tables.look_up(plain, tables.equalise(plain)), plain)
    assert torch.equal(tables.look_up(plain, tables.autocontrast(plain)), plain)


@photos
@pytest.mark.parametrize("radius", [0.1, 0.4, 0.8, 1.3, 2.0])
def test_blur(photo, radius):
    theirs = Image.fromarray(photo).filter(ImageFilter.GaussianBlur(radius))
    assert psnr(blur(as_batch(photo), torch.tensor([radius]), 2.0), theirs) >= 40


def test_blur_of_radius_zero_is_the_identity_and_weights_sum_to_one():
    x = as_batch(PHOTOS[0])[:, :, :50, :70]
    assert torch.allclose(blur(x, torch.tensor([0.0]), 2.0), x, atol=1e-3)
    ones = torch.ones(3, 1, 20, 30)
    assert torch.allclose(blur(ones, torch.tensor([0.1, 1.0, 2.0]), 2.0), ones, atol=1e-5)


@photos
def test_jitter_in_a_given_order(photo):
    """Contrast, hue, brightness, saturation: torchvision's, each on the result of the previous one."""
    image = Image.fromarray(photo)
    theirs = reference.adjust_contrast(image, 0.6)
    hued = reference.adjust_hue(torch.from_numpy(np.asarray(theirs).copy()).permute(2, 0, 1), 0.15)
    theirs = Image.fromarray(hued.permute(1, 2, 0).numpy())
    theirs = reference.adjust_saturation(reference.adjust_brightness(theirs, 1.3), 1.5)
    factors = torch.tensor([[1.3, 0.6, 1.5, 0.15]])
    order = torch.tensor([[colour.CONTRAST, colour.HUE, colour.BRIGHTNESS, colour.SATURATION]])
    mean, high = errors(colour.jitter(as_batch(photo), factors, order), theirs)
    assert mean <= 1.5  # four roundings of theirs
    assert high <= 6


def test_jitter_follows_torchvisions_distribution():
    factors, order = colour.draw_jitter(DRAWS, (0.4, 0.4, 0.2, 0.1), probability=1.0)
    torch.manual_seed(0)
    drawn = [ColorJitter.get_params((0.6, 1.4), (0.6, 1.4), (0.8, 1.2), (-0.1, 0.1)) for _ in range(N)]
    for k in range(4):
        theirs = np.array([float(d[1 + k]) for d in drawn])
        assert stats.ks_2samp(factors[:, k].numpy(), theirs).pvalue > 1e-3
    orders = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.bincount(orders.unique(return_inverse=True)[1])
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert (order.sort(dim=1).values == torch.arange(4)).all()


def test_steps_apply_with_their_probability():
    factors, _ = colour.draw_jitter(DRAWS, (0.8, 0.8, 0.8, 0.2), probability=0.8)
    untouched = (factors == torch.tensor([1.0, 1.0, 1.0, 0.0])).all(dim=1)
    assert stats.binomtest(int(untouched.sum()), N, 0.2).pvalue > 1e-3
    radius = draw_blur(DRAWS, (1.0, 2.0), 0.3)
    assert stats.binomtest(int((radius > 0).sum()), N, 0.3).pvalue > 1e-3
    assert stats.kstest(radius[radius > 0].numpy(), stats.uniform(1, 1).cdf).pvalue > 1e-3


def test_blur_uses_each_images_radius():
    dots = torch.zeros(3, 1, 5, 5)
    dots[:, :, 2, 2] = 255
    middle = blur(dots, torch.tensor([0.0, 1.0, 2.0]), 2.0)[:, 0, 2, 2]
    assert middle[0] == 255
    assert middle[0] > middle[1] > middle[2]


def test_planes_match_the_operations_one_by_one():
    """A chain of colour operations on GPUs equals the operations one by one, in every order."""
    order = torch.tensor(list(permutations(range(4))))
    x = torch.rand(24, 3, 6, 9, generator=torch.Generator().manual_seed(0)) * 255
    x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)  # every second pixel has the mean of all
    factors, _ = colour.draw_jitter(DRAWS, (0.8, 0.8, 0.8, 0.2), probability=0.8)
    factors, chosen = factors[:24], DRAWS.chance("grey", 0.5)[:24]
    expected = colour.solarise(colour.to_grey(colour.jitter(x, factors, order), chosen), ~chosen, 100.0)
    three = planes.to_grey(planes.jitter(planes.split(x), *planes.make_chain(factors, order)), chosen)
    assert torch.allclose(planes.join(planes.solarise(three, ~chosen, 100.0), x.dtype), expected, atol=2e-3)


@photos
def test_the_mean_of_every_second_pixel_is_enough(photo):
    x = as_batch(photo).expand(24, -1, -1, -1)
    order, factors = torch.tensor(list(permutations(range(4)))), torch.tensor([[1.3, 0.4, 1.5, 0.15]]).expand(24, -1)
    ours = planes.join(planes.jitter(planes.split(x), *planes.make_chain(factors, order)), x.dtype)
    difference = (ours - colour.jitter(x, factors, order)).abs()
    assert difference.mean() <= 0.5
    assert difference.flatten()[::7].quantile(0.999) <= 1.5


def test_jitter_does_not_change_its_input():
    x = as_batch(PHOTOS[0])[:, :, :8, :8]
    before = x.clone()
    colour.jitter(x, torch.tensor([[1.3, 0.6, 1.5, 0.15]]), torch.arange(4)[None])
    assert torch.equal(x, before)
