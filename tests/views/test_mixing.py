from __future__ import annotations

import numpy as np
import pytest
import torch

from vitling.views.draws import Draws
from vitling.views.erasing import draw_erasing, erase, noise_bank
from vitling.views.mixing import draw_mix, mix_images, mix_quantiles
from vitling.views.plan import Mix

N, SIZE = 400, 16
OWN, PARTNER = torch.zeros(N, 3, SIZE, SIZE), torch.ones(N, 3, SIZE, SIZE)
NOISE = noise_bank(torch.device("cpu"))


def recipe(mix: Mix):
    draws = Draws.from_ids([11], torch.arange(N))
    return draw_mix(draws, mix_quantiles(mix, torch.device("cpu")), mix=mix, size=SIZE)


def mixed(mix: Mix) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = recipe(mix)
    return mix_images(OWN, PARTNER, drawn), drawn.lam


def test_cutmix_lambda_is_the_kept_area():
    images, lam = mixed(Mix(cutmix=1.0))
    assert set(images.unique().tolist()) <= {0.0, 1.0}
    kept = 1 - images[:, 0].mean(dim=(1, 2))
    assert torch.allclose(kept, lam, atol=1e-6)
    assert 0.35 < lam.mean() < 0.75


def test_cutmix_pastes_one_rectangle():
    images, _ = mixed(Mix(cutmix=1.0))
    for image in images[:, 0].numpy():
        rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
        assert image.sum() == len(rows) * len(columns)
        assert (np.diff(rows) == 1).all()


def test_mixup_blends_by_lambda():
    images, lam = mixed(Mix(mixup=0.8))
    assert torch.allclose(images, (1 - lam)[:, None, None, None].expand_as(images), atol=1e-6)


def test_mixup_and_cutmix_are_drawn_equally_often():
    images, _ = mixed(Mix(mixup=0.8, cutmix=1.0))
    blended = ((images > 0) & (images < 1)).flatten(1).any(1).float().mean()
    assert 0.4 < blended < 0.6


def test_folded_lambda_favours_the_first_image():
    _, lam = mixed(Mix(mixup=0.5, fold=True))
    assert lam.min() >= 0.5
    assert abs(lam.mean() - 0.818) < 0.02  # E max(lambda, 1 - lambda) for Beta(.5, .5)


def test_unmixed_images_stay_unchanged():
    images, lam = mixed(Mix(mixup=0.8, cutmix=1.0, prob=0.5))
    untouched = lam == 1
    assert 0.4 < untouched.float().mean() < 0.65
    assert (images[untouched] == 0).all()


def test_erasing_follows_its_distribution():
    images = torch.zeros(2000, 3, 32, 32)
    out = erase(images, draw_erasing(Draws.from_ids([2], torch.arange(2000)), 0.25, 32), NOISE)
    touched = (out != 0).any(dim=1)
    areas = touched.float().mean(dim=(1, 2))
    erased = areas > 0
    assert abs(erased.float().mean() - 0.25) < 0.04
    assert areas[erased].min() > 0.01
    assert areas[erased].max() < 0.36
    noise = out[out != 0]
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_erasing_with_probability_0_and_1(probability):
    numbers = draw_erasing(Draws.from_ids([2], torch.arange(50)), probability, 16)
    out = erase(torch.zeros(50, 1, 16, 16), numbers, NOISE)
    assert ((out != 0).flatten(1).any(1).float().mean() == probability).item()
