"""Mimetic initialisation: products of weights are the identity and its negative, with noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vitling.backbones.backbone import create
from vitling.backbones.mimetic import check, initialise
from vitling.errors import UserError
from vitling.runs.network import build_backbone
from vitling.settings.config import PretrainConfig


@pytest.fixture
def model():
    backbone = create("vit_micro_patch4_32", 32, seed=0)
    torch.manual_seed(0)
    initialise(backbone.timm_model)
    return backbone.timm_model


def test_products_follow_the_paper(model):
    """Queries and keys of a head: the leading singular directions of 0.7 I + 0.7 Z; values and projection: -0.4 I + 0.4
    Z. So for tokens x, the scores are x A x^T and a token that attends to itself alone gets x B."""
    torch.manual_seed(0)
    for block in model.blocks:
        q, k, v = block.attn.qkv.weight.chunk(3)
        for head in range(4):
            full = 0.7 * torch.eye(128) + 0.7 * torch.randn(128, 128) / 128**0.5
            u, s, vh = torch.linalg.svd(full)
            expected = u[:, :32] @ s[:32].diag() @ vh[:32]
            rows = slice(32 * head, 32 * head + 32)
            torch.testing.assert_close(q[rows].mT @ k[rows], expected, atol=1e-4, rtol=1e-3)
        expected = -0.4 * torch.eye(128) + 0.4 * torch.randn(128, 128) / 128**0.5
        x = torch.randn(5, 128, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(x @ v.mT @ block.attn.proj.weight.mT, x @ expected, atol=1e-4, rtol=1e-3)


def test_positions_are_sines_and_cosines(model):
    other = create("vit_micro_patch4_32", 32, seed=0).timm_model
    torch.testing.assert_close(model.pos_embed[0, 0], other.pos_embed[0, 0])  # the class token has its own
    positions = model.pos_embed[0, 1:].detach()
    assert (positions[:, :64] ** 2 + positions[:, 64:] ** 2).allclose(torch.ones(64, 64))
    assert len(positions.round(decimals=4).unique(dim=0)) == 64
    assert model.pos_embed.requires_grad


def test_only_plain_vits_are_supported():
    for name in ("pvt_v2_b0", "swin_tiny_patch4_window7_224", "resnet10t"):
        with pytest.raises(UserError, match=f"plain ViTs .* not for {name}"):
            check(create(name, 224, seed=0).timm_model, name)


def test_runs_start_from_it():
    config = PretrainConfig(backbone="vit_nano_patch4_32", size=32, init="mimetic")
    first, second, other = (build_backbone(replace(config, seed=seed), 0.0).timm_model for seed in (0, 0, 1))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert torch.equal(first.pos_embed[0, 1:], other.pos_embed[0, 1:])
    assert not torch.equal(first.blocks[0].attn.proj.weight, other.blocks[0].attn.proj.weight)
    default = build_backbone(replace(config, init="default"), 0.0).timm_model
    assert not torch.equal(first.pos_embed, default.pos_embed)
    assert torch.equal(first.blocks[0].mlp.fc1.weight, default.blocks[0].mlp.fc1.weight)
