"""Stochastic depth equals timm's, with a rate that the compiler does not specialise on."""

from __future__ import annotations

import copy

import pytest
import torch
from timm.layers import DropPath

from vitling.backbones import create
from vitling.backbones.depth import StochasticDepth, replace_drop_paths


def test_each_image_keeps_or_drops_its_whole_branch():
    torch.manual_seed(0)
    depth, x = StochasticDepth(0.3).train(), torch.rand(20_000, 2, 3) + 1
    ratio = depth(x) / x
    kept = ratio[:, 0, 0] > 0
    assert torch.equal(ratio > 0, kept[:, None, None].expand_as(ratio))
    assert ratio[kept].allclose(torch.tensor(1 / 0.7))
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.02)
    assert torch.equal(depth.eval()(x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rate_of_0_is_the_identity(dtype):
    x = torch.randn(50, 4, dtype=dtype)
    given = StochasticDepth(0.0).train()(x)
    assert given.dtype == dtype
    assert torch.equal(given, x)


@pytest.mark.parametrize("name", ["vit_micro_patch4_32", "pvt_v2_b0", "swin_tiny_patch4_window7_224", "t2t_vit_7"])
def test_blocks_keep_their_rates_and_weight_names(name):
    plain, deep = create(name, 64, seed=0), create(name, 64, drop_path=0.2, seed=0)
    rates = [module.drop_prob for module in deep.modules() if isinstance(module, StochasticDepth)]
    assert rates == sorted(rates)
    assert (rates[0], rates[-1]) == (0.0, pytest.approx(0.2))
    assert not any(isinstance(module, DropPath) for module in deep.modules())
    assert plain.state_dict().keys() == deep.state_dict().keys()


def test_a_network_without_drop_path_is_unchanged():
    model = create("vit_micro_patch4_32", seed=0).timm_model
    before = copy.deepcopy(model)
    replace_drop_paths(model)
    assert str(model) == str(before)
