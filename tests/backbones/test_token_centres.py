"""Positions of tokens in the image, against the arithmetic of the layers."""

from __future__ import annotations

import pytest
import torch

from vitling.backbones import create

HALVED = (3, 2, 1)  # kernel, stride, padding
LAYERS = {
    "deit_tiny_patch16_224": [(16, 16, 0)],
    "swin_tiny_patch4_window7_224": [(4, 4, 0), *[(2, 2, 0)] * 3],
    "pvt_small": [(4, 4, 0), *[(2, 2, 0)] * 3],
    "vil_tiny": [(4, 4, 0), *[(2, 2, 0)] * 3],
    "pvt_v2_b0": [(7, 4, 3), *[HALVED] * 3],
    "resnet18": [(7, 2, 3), *[HALVED] * 4],
    "t2t_vit_7": [(7, 4, 2), *[HALVED] * 2],
    "cvt_13": [(7, 4, 3), *[HALVED] * 2],
    "cvt_tiny": [(7, 4, 2), *[HALVED] * 3],
}


def literal(layers: list[tuple[int, int, int]], count: int) -> list[float]:
    """Compute the centre of each output's receptive field, in pixels from the edge."""
    first, pitch = 0.5, 1
    for kernel, stride, padding in layers:
        first += ((kernel - 1) / 2 - padding) * pitch
        pitch *= stride
    return [first + i * pitch for i in range(count)]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", [224, 160])
def test_token_centres_match_the_layers(name, size):
    backbone = create(name, size)
    found = size * backbone.token_centres(size)
    assert len(found) == backbone.grid_size()[0]
    expected = torch.tensor(literal(LAYERS[name], len(found)))
    assert (found - expected)[1:].abs().max() <= 1.5  # CvT's and T2T-ViT's first padding is a pixel short
    assert 0 < found[0] <= expected[1] / 2 + 1.5  # only half of a convolution's first token lies in the image


@pytest.mark.parametrize(("name", "last"), [("swin_tiny_patch4_window7_224", 104), ("pvt_v2_b0", 96)])
def test_a_last_token_that_covers_less(name, last):
    """112 px are three and a half tokens of 32 px: the last patch covers 96 to 112, the last convolution 80 to 112."""
    assert create(name, 112).token_centres(112)[-1] * 112 == pytest.approx(last)
