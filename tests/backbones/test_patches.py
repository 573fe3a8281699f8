from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vitling.backbones import create
from vitling.backbones.patches import PatchProjection, StemProjection, replace_patch_convolutions


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("side", [4, (2, 5)])
@pytest.mark.parametrize("shape", [(8, 20), (9, 23)])
def test_values_and_gradients_match_the_convolution(bias, side, shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 7, side, stride=side, bias=bias))
    replaced = copy.deepcopy(model)
    replace_patch_convolutions(replaced)
    assert isinstance(replaced[0], PatchProjection)
    outputs = []
    for network in (model, replaced, replaced[0].product):
        x = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
        y = network(x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *(model if network is model else replaced).parameters()])
        outputs.append([y, *gradients])
    for theirs, same, ours in zip(*outputs):
        assert torch.equal(theirs, same)
        assert torch.allclose(theirs, ours, atol=1e-4)
    assert [(n, p.shape) for n, p in model.named_parameters()] == [(n, p.shape) for n, p in replaced.named_parameters()]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("side", "stride", "padding"), [(7, 4, 3), ((5, 6), (4, 5), (1, 2)), (4, 4, 1)])
@pytest.mark.parametrize("shape", [(16, 20), (13, 23)])
def test_overlapping_patches_of_the_image_match_the_convolution(bias, side, stride, padding, shape):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 7, side, stride, padding, bias=bias))
    replaced = copy.deepcopy(model)
    replace_patch_convolutions(replaced)
    assert isinstance(replaced[0], StemProjection)
    outputs = []
    for network in (model, replaced, replaced[0].product):
        x = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
        y = network(x)
        gradients = torch.autograd.grad(y.square().sum(), [x, *(model if network is model else replaced).parameters()])
        outputs.append([y, *gradients])
    for theirs, same, ours in zip(*outputs):
        assert torch.equal(theirs, same)
        assert torch.allclose(theirs, ours, atol=1e-4)
    assert [(n, p.shape) for n, p in model.named_parameters()] == [(n, p.shape) for n, p in replaced.named_parameters()]


@pytest.mark.parametrize(
    "arguments", [{"groups": 3}, {"dilation": 2}, {"stride": 2}, {"padding": "valid"}, {"padding_mode": "circular"}]
)
def test_other_convolutions_are_kept(arguments):
    model = nn.Sequential(nn.Conv2d(3, 6, 4, **{"stride": 4, **arguments}), nn.Conv2d(6, 6, 1))
    replace_patch_convolutions(model)
    assert not any(isinstance(module, PatchProjection | StemProjection) for module in model.modules())


def test_patch_embeddings_and_spatial_reductions_are_replaced():
    def products(name: str) -> tuple[int, int]:
        modules = list(create(name).modules())
        return tuple(sum(isinstance(module, kind) for module in modules) for kind in (PatchProjection, StemProjection))

    assert products("deit_tiny_patch16_224") == (1, 0)
    assert products("swin_tiny_patch4_window7_224") == (1, 0)
    assert products("pvt_v2_b0") == (6, 1)  # of its blocks all but those of the last stage
    assert products("resnet18") == (0, 0)  # its stride of 2 would make the patches twelve times the image
