"""RandAugment against timm's operations on a photograph, with the same numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from timm.data import auto_augment

from tests.views.photos import PHOTOS, as_array, as_batch, psnr
from vitling.views import Draws
from vitling.views.plan import RandAugment
from vitling.views.randaugment import FILL, NOTHING, NUMBER, OPERATIONS, apply_layer, draw_rand_augment, scale_amounts

PHOTO = PHOTOS[0][:224, :224]
TIMM = {
    "autocontrast": "AutoContrast", "equalise": "Equalize", "invert": "Invert", "rotate": "Rotate",
    "posterise": "PosterizeIncreasing", "solarise": "SolarizeIncreasing", "solarise_add": "SolarizeAdd",
    "saturation": "ColorIncreasing", "contrast": "ContrastIncreasing", "brightness": "BrightnessIncreasing",
    "sharpness": "SharpnessIncreasing", "shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateXRel",
    "translate_y": "TranslateYRel",
}  # fmt: skip


def layer(name: str, amount: float) -> torch.Tensor:
    operation, strength = torch.tensor([NUMBER[name]]), torch.tensor([amount])
    middle = torch.tensor([0.5])
    return apply_layer(as_batch(PHOTO), operation, strength, FILL["timm"], "bilinear", middle, middle)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("level", [3.0, 9.0])
@pytest.mark.parametrize("name", OPERATIONS["timm"])
def test_operations_match_timm(name, level, sign, monkeypatch):
    """Compare the argument that follows from the level, and the picture that follows from the argument."""
    monkeypatch.setattr(random, "random", lambda: 0.0 if sign > 0 else 1.0)  # timm turns the sign above 0.5
    to_argument = auto_augment.LEVEL_TO_ARG[TIMM[name]]
    arguments = to_argument(level, {"translate_pct": 0.45}) if to_argument else ()
    number = torch.tensor([NUMBER[name]])
    ours = scale_amounts(number, torch.tensor([level / 10]), torch.tensor([sign]), "timm").item()
    if arguments:
        assert ours == pytest.approx(arguments[0], abs=1e-5)
    fill = tuple(int(v) for v in FILL["timm"])
    transform = auto_augment.NAME_TO_OP[TIMM[name]]
    theirs = transform(Image.fromarray(PHOTO), *arguments, fillcolor=fill, resample=Image.Resampling.BILINEAR)
    assert psnr(layer(name, ours), theirs) > 36


def test_uda_ranges_match_idmm():
    """Shear to 0.3, translation to 150/331, rotation to 30 degrees one way, enhancement 0.1..1.9, 8 to 4 bits,
    threshold 256 to 0, cutout to 20 px."""
    strongest, weakest, plus = torch.ones(1), torch.full((1,), 1 / 9), torch.ones(1)

    def amount(name, strength, sign=plus):
        return scale_amounts(torch.tensor([NUMBER[name]]), strength, sign, "uda").item()

    assert amount("shear_x", strongest) == pytest.approx(0.3)
    assert amount("translate_y", strongest, -plus) == pytest.approx(-150 / 331)
    assert amount("rotate", strongest, -plus) == pytest.approx(30)
    assert amount("brightness", strongest) == pytest.approx(1.9)
    assert amount("brightness", strongest, -plus) == pytest.approx(0.1)
    assert (amount("posterise", strongest), amount("posterise", weakest)) == (4, 8)
    assert (amount("solarise", strongest), round(amount("solarise", weakest))) == (0, 228)
    assert amount("cutout", strongest) == pytest.approx(20)


def test_cutout_is_a_square():
    holes = np.abs(as_array(layer("cutout", 14.0)) - PHOTO).max(-1) > 1
    rows, columns = np.flatnonzero(holes.any(1)), np.flatnonzero(holes.any(0))
    assert rows[-1] - rows[0] + 1 == columns[-1] - columns[0] + 1 == 14
    assert abs(rows.mean() - 112) <= 1


def test_no_operation_keeps_the_image():
    operation, none = torch.tensor([NOTHING]), torch.zeros(1)
    out = apply_layer(as_batch(PHOTO), operation, none, FILL["uda"], "bicubic", none, none)
    assert np.abs(as_array(out) - PHOTO).max() <= 1


@pytest.mark.parametrize("style", ["timm", "uda"])
def test_operations_are_equally_frequent(style):
    numbers = draw_rand_augment(Draws.from_ids([5], torch.arange(10_000)), RandAugment(style))
    assert len(numbers) == 8
    seen, strengths = numbers[::4], numbers[1::4]
    for layer_operations in seen:
        applied = layer_operations[layer_operations != NOTHING]
        assert stats.binomtest(len(applied), 10_000, 0.5).pvalue > 1e-3
        counts = torch.bincount(applied)[[NUMBER[name] for name in OPERATIONS[style]]]
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    rotations = strengths[0][seen[0] == NUMBER["rotate"]]
    if style == "timm":
        expected = stats.truncnorm(-18, 2, loc=9, scale=0.5).cdf
        levels = (rotations.abs() / 3)[rotations.abs() < 29.99]
        assert stats.kstest(levels.numpy(), expected).pvalue > 1e-3
        assert 0.4 < (rotations > 0).float().mean() < 0.6
    else:
        assert sorted(set((rotations * 9 / 30).round().int().tolist())) == list(range(1, 10))
