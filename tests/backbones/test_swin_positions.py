"""Swin without its relative position bias, and with absolute positions instead."""

from __future__ import annotations

import pytest
import torch

from vitling.backbones import create, load_weights
from vitling.evaluation.bundle import BundleMeta, load_bundle, save_bundle

SWIN = "swin_tiny_patch4_window7_224"


@pytest.fixture(scope="module")
def networks():
    return {kind: create(SWIN + kind, seed=0).eval() for kind in ("", ".no_bias", ".absolute")}


def images(size=224):
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_without_bias_it_equals_timm_with_zero_tables(networks):
    twin = create(SWIN, seed=1).eval()
    transfer = load_weights(twin, networks[".no_bias"].timm_model.state_dict())
    assert len(transfer.missing) == 12
    assert all("relative_position_bias_table" in name for name in transfer.missing)
    for name, parameter in twin.named_parameters():
        if name.endswith("relative_position_bias_table"):
            parameter.zero_()
    assert torch.equal(twin(images()).grid, networks[".no_bias"](images()).grid)


@torch.no_grad()
def test_absolute_positions_are_added_to_the_patches(networks):
    absolute, none = networks[".absolute"], networks[".no_bias"]
    load_weights(none, absolute.timm_model.state_dict())
    assert not torch.equal(none(images()).grid, absolute(images()).grid)
    absolute.timm_model.absolute_pos_embed.zero_()
    assert torch.equal(none(images()).grid, absolute(images()).grid)
    assert absolute(images(96)).grid.shape == (1, 768, 3, 3)


def test_the_bias_is_neither_trained_nor_decayed(networks):
    for kind in (".no_bias", ".absolute"):
        assert not any("bias_table" in name for name in networks[kind].state_dict())
    assert networks[".absolute"].no_decay() == {"timm_model.absolute_pos_embed"}
    assert networks[".no_bias"].no_decay() == set()


@torch.no_grad()
def test_a_saved_model_loads_again(tmp_path, networks):
    meta = BundleMeta("single", ("a", "b"), 224, 256, (0.5,) * 3, (0.5,) * 3)
    backbone = networks[".absolute"]
    save_bundle(tmp_path, backbone, torch.nn.Linear(768, 2), meta)
    assert torch.equal(load_bundle(tmp_path).backbone.eval()(images()).grid, backbone(images()).grid)
