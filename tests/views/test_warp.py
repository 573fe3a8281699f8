from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from tests.views.photos import PHOTOS, as_batch
from vitling.views import Draws, Rotate, steps
from vitling.views.warp import identity, rotation, warp

MIDDLE = slice(100, 320)


@pytest.mark.parametrize("degrees", [-30.0, 7.0, 90.0])
def test_rotation_matches_pil(degrees):
    theirs = np.asarray(Image.fromarray(PHOTOS[0]).rotate(degrees, Image.Resampling.BILINEAR)).astype(float)
    ours = warp(as_batch(PHOTOS[0]), rotation(torch.tensor([degrees])), fill=None)[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs)[MIDDLE, MIDDLE].mean() < 1


def test_the_border_is_replicated():
    plain = torch.full((1, 3, 20, 20), 77.0)
    assert torch.allclose(warp(plain, rotation(torch.tensor([45.0])), fill=None), plain, atol=1e-3)


def test_identity_changes_nothing():
    x = as_batch(PHOTOS[1])[:, :, :50, :70]
    assert torch.allclose(warp(x, identity(1, x.device), fill=None), x, atol=0.05)


def test_angles_are_uniform_in_both_directions():
    (angle,) = steps.draw_step(Draws.from_ids([1], torch.arange(5000)), Rotate(15.0))
    assert stats.kstest(angle.numpy(), stats.uniform(-15, 30).cdf).pvalue > 1e-3
