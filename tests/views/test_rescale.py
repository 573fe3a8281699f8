"""Whole images on a canvas: their size, their place, and what lies outside of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.views.batches import ASPECT, PIXELS, N, render
from vitling.views import Draws, Flip, Group, Mix, Plan, Policy, Rescale
from vitling.views.geometry import crop, find_inside, rescale_boxes
from vitling.views.policies import make_plan

CANVAS = 48


def draw(rescale: Rescale, aspect: torch.Tensor) -> torch.Tensor:
    return rescale_boxes(Draws.from_ids([3], torch.arange(len(aspect))), aspect, rescale, CANVAS)


def test_sides_follow_the_literal_rule():
    aspect = torch.exp(torch.linspace(-1.5, 1.5, 400))
    rescale = Rescale((20.0, 40.0), longest=50.0, factor=(0.5, 2.0), random_crop=True)
    boxes, u = draw(rescale, aspect), Draws.from_ids([3], torch.arange(400)).uniform("rescale", 4)
    for box, ratio, (a, b, c, d) in zip(boxes.tolist(), aspect.tolist(), u.tolist()):
        shorter = 20 + 20 * a
        longer = shorter * max(ratio, 1 / ratio)
        if longer > 50:
            shorter, longer = shorter * 50 / longer, 50.0
        factor = 0.5 + 1.5 * b
        width, height = (longer, shorter) if ratio > 1 else (shorter, longer)
        width, height = width * factor, height * factor
        left, top = c * max(width - CANVAS, 0) / width, d * max(height - CANVAS, 0) / height
        assert box == pytest.approx((left, top, CANVAS / width, CANVAS / height), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [12, 30, 48, 70])
def test_a_rescaled_image_equals_pils(filter, side):
    """Resized as a whole, at the top left of the canvas; a larger image is cut."""
    image = np.asarray(Image.effect_noise((64, 64), 20).convert("RGB"))
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
    boxes = draw(Rescale((side, side)), torch.ones(1))
    ours = crop(pixels, boxes, CANVAS, filter, outside=True)[0].permute(1, 2, 0).numpy()
    theirs = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling[filter.upper()]))
    shown = min(side, CANVAS)
    assert np.abs(ours[:shown, :shown] - theirs[:shown, :shown]).max() < 1.5
    inside = find_inside(boxes, CANVAS)[0, 0]
    assert inside[:shown, :shown].all()
    assert inside.sum() == shown**2


def test_whole_products_and_bands_agree(monkeypatch):
    boxes = draw(Rescale((5.0, 90.0), random_crop=True), ASPECT)
    flip = torch.arange(N) % 2 == 0
    in_bands = crop(PIXELS, boxes, CANVAS, "bilinear", flip, outside=True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.allclose(crop(PIXELS, boxes, CANVAS, "bilinear", flip, outside=True), in_bands, atol=1e-3)


@pytest.mark.parametrize("mix", [Mix(), Mix(mixup=1.0)])
def test_the_outside_is_zero_and_follows_the_flip(mix):
    """Mixing comes after normalisation, so that the outside is not a colour."""
    policy = Policy(rescale=Rescale((16.0, 16.0), longest=24.0), steps=(Flip(0.5),))
    plan = Plan((Group(CANVAS, policy=policy, mix=mix, return_boxes=True),))
    views = render(plan)[0]
    left, top, width, height = views.boxes.T
    assert (width < 0).any()
    assert (width > 0).any()
    centres = (torch.arange(CANVAS) + 0.5) / CANVAS
    if mix.on:
        assert (views.pixels[:, :, 30:] == 0).all()  # of images of at most 24 px
        return
    for i in range(N):
        x, y = left[i] + width[i] * centres, top[i] + height[i] * centres
        inside = ((y >= 0) & (y <= 1))[:, None] & ((x >= 0) & (x <= 1))[None]
        assert torch.equal(views.pixels[i].abs().sum(dim=0) > 0, inside)


def test_the_store_holds_what_the_canvas_can_show():
    assert make_plan("detection", 1344).store_side(100) == 1344
    assert make_plan("segmentation", 512).store_side(100) == 1024
    assert make_plan("segmentation", 512).store_side(10**6) == 512
