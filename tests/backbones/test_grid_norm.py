"""The grid before or after the final norm, or the one that DRLoc's release uses ("published")."""

from __future__ import annotations

import pytest
import torch

from vitling.backbones import Features, create

PUBLISHED = {
    "swin_tiny_patch4_window7_224": "before",
    "vit_micro_patch4_32": "before",
    "t2t_vit_7": "after",
    "cvt_13_official": "after",
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
@torch.no_grad()
def test_with_a_final_norm(name, published):
    backbone = create(name, size=32, seed=0).eval()
    norm = backbone.timm_model.norm
    torch.nn.init.normal_(norm.weight)
    features = backbone(torch.randn(1, 3, 32, 32), stages=True)
    before, after = features.select_grid("before"), features.select_grid("after")
    assert torch.equal(before, features.stages[-1])
    assert torch.equal(after, features.grid)
    torch.testing.assert_close(norm(before.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), after)
    assert features.select_grid("published") is (before if published == "before" else after)


@pytest.mark.parametrize("name", ["cvt_13", "resnet18", "pvt_v2_b0"])
@torch.no_grad()
def test_without_a_final_norm_both_grids_are_equal(name):
    features = create(name, size=32, seed=0).eval()(torch.randn(1, 3, 32, 32))
    for norm in ("before", "after", "published"):
        assert features.select_grid(norm) is features.grid


def test_features_default_to_one_grid():
    grid = torch.zeros(1, 2, 3, 3)
    assert Features(torch.zeros(1, 2), grid).select_grid("published") is grid
