"""Maps of strides 4 to 32 from every kind of backbone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitling.backbones.backbone import create
from vitling.dense.pyramid import Pyramid, StageMaps
from vitling.errors import UserError

BACKBONES = {
    "swin_tiny_patch4_window7_224": True,
    "pvt_v2_b0": True,
    "resnet18": True,
    "convnext_tiny": True,
    "pvt_small": True,
    "vil_tiny": True,
    "deit_tiny_patch16_224": False,
    "t2t_vit_7": False,
}


@pytest.mark.parametrize("name", BACKBONES)
def test_every_family_gives_four_strides(name):
    backbone = create(name, size=64 if "patch16" in name else None)
    maps = StageMaps(backbone)
    assert maps.is_plain != BACKBONES[name]
    pixels = maps.pad(torch.randn(2, 3, 70, 90))
    assert pixels.shape[-2:] == (96, 96)
    found = maps(backbone(pixels, stages=True).stages)
    assert [some.shape[1] for some in found] == maps.widths
    assert [some.shape[-1] for some in found] == [24, 12, 6, 3]
    pyramid = Pyramid(maps, 16)(found)
    assert [tuple(some.shape) for some in pyramid.values()] == [(2, 16, n, n) for n in (24, 12, 6, 3, 2)]
    sum(some.square().sum() for some in pyramid.values()).backward()
    idle = [n for n, p in backbone.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle


def test_the_norms_of_a_swin_apply_to_each_stage():
    backbone = create("swin_tiny_patch4_window7_224").eval()
    maps = StageMaps(backbone)
    stages = backbone(torch.randn(1, 3, 64, 64), stages=True).stages
    for ours, stage in zip(maps(stages), stages):
        channels_last = F.layer_norm(stage.permute(0, 2, 3, 1), stage.shape[1:2], eps=1e-6)
        assert torch.allclose(ours, channels_last.permute(0, 3, 1, 2), atol=1e-5)


def test_three_stages_are_completed():
    backbone = create("cvt_13")
    maps = StageMaps(backbone)
    found = maps(backbone(torch.randn(1, 3, 64, 64), stages=True).stages)
    assert [some.shape[-1] for some in found] == [16, 8, 4, 2]
    assert torch.equal(found[3], F.max_pool2d(found[2], 2))


def test_a_patch_of_14_is_refused():
    with pytest.raises(UserError, match="stride 14"):
        StageMaps(create("vit_small_patch14_dinov2", size=224))
