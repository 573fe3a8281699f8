"""Narrow ViTs do not start with the weights that are made for wide ones."""

from __future__ import annotations

import pytest
import torch

from vitling.backbones import create


@pytest.mark.parametrize("name", ["vit_nano_patch4_32", "vit_micro_patch4_32"])
def test_weights_keep_the_size_of_what_they_are_given(name):
    model = create(name, seed=0).timm_model
    for block in model.blocks:
        for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
            assert float(layer.weight.std()) * layer.in_features**0.5 == pytest.approx(1, abs=0.05)
    assert float(model.pos_embed[:, 1:].std()) == pytest.approx(0.5, abs=0.05)
    assert float(model.pos_embed[:, :1].std()) == pytest.approx(0.02, abs=0.01)


def test_where_a_patch_lies_changes_the_features():
    """With timm's own start they hardly change."""
    backbone = create("vit_nano_patch4_32", 16, seed=0).eval()
    image = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        here, there = backbone(image).pooled, backbone(image.roll(8, dims=-1)).pooled
    assert float((here - there).norm() / here.norm()) > 0.1


def test_others_start_as_in_timm():
    weight = create("vit_tiny_patch16_224", seed=0).timm_model.blocks[0].attn.qkv.weight
    assert float(weight.std()) == pytest.approx(0.02, abs=0.002)
