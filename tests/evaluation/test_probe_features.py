"""Features of the last blocks, compared with the outputs of each network's layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.conftest import make_folder
from tests.tiny import tiny_backbone
from vitling import data
from vitling.backbones import create
from vitling.data.store import build_store
from vitling.errors import UserError
from vitling.evaluation.features import compute_pooled_features
from vitling.evaluation.probe_features import (
    compute_augmented_features,
    compute_batch_features,
    compute_probe_features,
    get_last_blocks,
)
from vitling.views.plan import Group, Plan, Policy


@pytest.fixture
def store(tmp_path):
    return build_store(data.open(make_folder(tmp_path / "images", each=5), val="none").train, 20)


@torch.inference_mode()
def features(name: str, size: int, blocks: int = 4):
    backbone = create(name, size=size, seed=0).eval()
    images = torch.randn(2, 3, size, size)
    return backbone, backbone(images, stages="blocks"), compute_batch_features(backbone, images, blocks)


@pytest.mark.parametrize(
    ("name", "widths"),
    [("swin_tiny_patch4_window7_224", (384, 384, 768, 768)), ("swin_base_patch4_window7_224", (512, 512, 1024, 1024))],
)
def test_swin_features_have_esvits_widths(name, widths):
    """Stage 3 is unchanged and stage 4 normed; both are means over their tokens."""
    backbone, found, frozen = features(name, 64)
    assert frozen.blocks.shape == (2, sum(widths))
    assert sum(widths) in (2304, 3072)
    parts = frozen.blocks.split(widths, dim=1)
    maps = found.stages[-4:]
    for part, grid in zip(parts[:2], maps[:2]):
        assert torch.allclose(part, grid.mean(dim=(2, 3)), atol=1e-5)
    normed = backbone.timm_model.norm(maps[2].permute(0, 2, 3, 1)).mean(dim=(1, 2))
    assert torch.allclose(parts[2], normed, atol=1e-5)
    assert torch.allclose(parts[3], frozen.pooled, atol=1e-5)
    assert torch.allclose(frozen.pooled, found.pooled, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_micro_patch4_32", "t2t_vit_7"])
def test_class_tokens_of_the_last_blocks_are_normed(name):
    backbone, found, frozen = features(name, 32, 3)
    parts = frozen.blocks.split(backbone.dim, dim=1)
    assert len(parts) == 3
    assert torch.allclose(parts[-1], found.pooled, atol=1e-5)
    for part in parts:  # a norm with its initial weights: mean 0, std 1
        assert torch.allclose(part.mean(dim=1), torch.zeros(2), atol=1e-4)
        assert torch.allclose(part.std(dim=1, correction=0), torch.ones(2), atol=1e-2)


@pytest.mark.parametrize("name", ["cvt_13", "cvt_13_official", "pvt_v2_b0", "resnet18", "convnext_tiny"])
def test_last_block_equals_the_heads_input(name):
    _, found, frozen = features(name, 64, 2)
    width = found.pooled.shape[1]
    assert torch.allclose(frozen.blocks[:, -width:], found.pooled, atol=1e-4)


def test_too_many_blocks_are_refused():
    backbone = tiny_backbone()
    assert len(get_last_blocks(backbone, 2)) == 2
    assert compute_batch_features(backbone, torch.randn(1, 3, 16, 16), 0).blocks.shape == (1, 0)
    with pytest.raises(UserError, match=r"--linear.blocks 3 .* 2 blocks of vit_test"):
        get_last_blocks(backbone, 3)


def test_split_in_batches(store):
    backbone, done = tiny_backbone(), []
    whole = compute_probe_features(backbone, store, 16, 0.875, blocks=2)
    parts = compute_probe_features(backbone, store, 16, 0.875, blocks=2, batch=4, on_progress=done.append)
    assert done == [4, 8, 12, 15]
    assert backbone.training
    assert whole.blocks.shape == (15, 64)
    assert torch.allclose(whole.blocks, parts.blocks, atol=1e-5)
    assert torch.allclose(whole.pooled, compute_pooled_features(backbone, store, 16, 0.875), atol=1e-5)
    assert not whole.pooled.requires_grad


def test_random_views_depend_on_epoch_and_image(store):
    backbone, ids = tiny_backbone(), np.array([3, 7, 11])
    plan = Plan((Group(16, policy=Policy()),))
    first = compute_augmented_features(backbone, store, ids, plan, seed=0, epoch=0, blocks=2)
    again = compute_augmented_features(backbone, store, ids[::-1].copy(), plan, seed=0, epoch=0, blocks=2)
    other = compute_augmented_features(backbone, store, ids, plan, seed=0, epoch=1, blocks=2)
    assert torch.allclose(first, again.flip(0), atol=1e-5)
    assert not torch.allclose(first, other, atol=1e-2)
    still = Plan((Group(16, policy=Policy(centre=0.875, steps=())),))
    assert torch.allclose(
        compute_augmented_features(backbone, store, np.arange(15), still, 0, 0, 2),
        compute_probe_features(backbone, store, 16, 0.875, 2).blocks,
        atol=1e-5,
    )
