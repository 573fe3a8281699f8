"""PVTv2's MLP, whose 3x3 depthwise convolution and GELU are fused on GPUs.

cuDNN's depthwise convolutions and a separate GELU took 38 % of a training step of PVTv2-B0 on an H200. On CPUs timm's
operations are kept, so outputs are bit-identical to timm's. Parameters keep their names and shapes.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.models.pvt_v2 import MlpWithDepthwiseConv
from torch import Tensor, nn

from vitling.backbones.kernels import check_outputs, draw_inputs, try_kernels
from vitling.backbones.position import Grid

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class DepthwiseMlp(nn.Module):
    """timm's MlpWithDepthwiseConv with the same parameters, without dropout."""

    def __init__(self, mlp: MlpWithDepthwiseConv):
        super().__init__()
        self.fc1, self.dwconv, self.act, self.fc2 = mlp.fc1, mlp.dwconv, mlp.act, mlp.fc2

    def forward(self, x: Tensor, feat_size: Grid) -> Tensor:
        if x.is_cuda:
            return self.fused(x, feat_size)
        maps = self.fc1(x).transpose(1, 2).unflatten(2, feat_size)
        return self.fc2(self.act(self.dwconv(maps).flatten(2).transpose(1, 2)))

    def fused(self, x: Tensor, feat_size: Grid) -> Tensor:
        """Compute the same with the convolution and GELU in one operation."""
        hidden = F.linear(x, self.fc1.weight, self.fc1.bias.detach()).unflatten(1, feat_size)
        taps, bias = self.dwconv.weight.float(), cast(Tensor, self.dwconv.bias).float()
        activated = depthwise_gelu(hidden, self.fc1.bias, taps.flatten(1).t().contiguous(), bias)
        return self.fc2(activated.flatten(1, 2))


def replace_depthwise_mlps(model: nn.Module) -> None:
    """Replace PVTv2's MLPs in place, except those with dropout or with a ReLU before the convolution."""
    for parent in list(model.modules()):
        mlp = getattr(parent, "mlp", None)
        if isinstance(mlp, MlpWithDepthwiseConv) and _is_plain(mlp):
            parent.mlp = DepthwiseMlp(mlp)


def _is_plain(mlp: MlpWithDepthwiseConv) -> bool:
    exact = isinstance(mlp.act, nn.GELU) and mlp.act.approximate == "none"
    return exact and isinstance(mlp.relu, nn.Identity) and not mlp.drop.p


@torch.library.custom_op("vitling::depthwise_gelu", mutates_args=())
def depthwise_gelu(x: Tensor, x_bias: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(convolution(x) + bias) of maps [B, H, W, C], padded with zeros; `taps` is [9, C], row by row.

    `x_bias` must already be added to x, detached. It is an argument only so that its gradient, the sum of that of x, is
    computed in the same pass.
    """
    x = x.contiguous()
    if not has_kernels(x.device, x.dtype):
        return _compute_plainly(x, taps, bias)
    from vitling.backbones.depthwise_kernels import compute_output

    with torch.cuda.device_of(x):
        return compute_output(x, taps, bias)


@torch.library.custom_op("vitling::depthwise_gelu_backward", mutates_args=())
def depthwise_gelu_backward(out_gradient: Tensor, x: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradient of x and, as [11, C], those of taps, bias and x_bias."""
    x, out_gradient = x.contiguous(), out_gradient.contiguous()
    if not has_kernels(x.device, x.dtype):
        return _differentiate_plainly(out_gradient, x, taps, bias)
    from vitling.backbones.depthwise_kernels import compute_gradients

    with torch.cuda.device_of(x):
        return compute_gradients(out_gradient, x, taps, bias)


@cache
def has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Try the kernels."""
    return device.type == "cuda" and dtype in DTYPES and try_kernels(partial(check_kernels, device, dtype), device)


def check_kernels(device: torch.device, dtype: torch.dtype) -> None:
    """Raise an exception unless the kernels compute what torch does."""
    from vitling.backbones.depthwise_kernels import compute_gradients, compute_output

    slope, x = draw_inputs(dtype, (1, 5, 28, 256), (1, 5, 28, 256))
    inputs = [x, *draw_inputs(torch.float32, (9, 256), (256,))]
    exact = [tensor.float() for tensor in (slope, *inputs)]
    theirs = [_compute_plainly(*exact[1:]), *_differentiate_plainly(*exact)]
    slope, *inputs = (tensor.to(device) for tensor in (slope, *inputs))
    check_outputs([compute_output(*inputs), *compute_gradients(slope, *inputs)], theirs)


def _compute_plainly(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(_convolve(x, taps, bias)).permute(0, 2, 3, 1).contiguous()


def _convolve(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    weight = taps.t().reshape(-1, 1, 3, 3).to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        return F.conv2d(x.permute(0, 3, 1, 2), weight, bias.to(x.dtype), padding=1, groups=len(weight))


def _differentiate_plainly(out_gradient: Tensor, x: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    maps, weight = x.permute(0, 3, 1, 2), taps.t().reshape(-1, 1, 3, 3).to(x.dtype)
    slope = torch.ops.aten.gelu_backward(out_gradient.permute(0, 3, 1, 2), _convolve(x, taps, bias))
    x_gradient, weight_gradient, bias_gradient = torch.ops.aten.convolution_backward(
        slope, maps, weight, [len(weight)], [1, 1], [1, 1], [1, 1], False, [0, 0], len(weight), [True, True, True]
    )
    x_gradient = x_gradient.permute(0, 2, 3, 1).contiguous()
    x_sum = x_gradient.sum((0, 1, 2), dtype=taps.dtype)
    return x_gradient, torch.cat([weight_gradient.flatten(1).t(), bias_gradient[None], x_sum[None]]).to(taps.dtype)


@depthwise_gelu.register_fake
def _make_fake_output(x: Tensor, x_bias: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@depthwise_gelu_backward.register_fake
def _make_fake_gradients(out_gradient: Tensor, x: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), taps.new_empty(len(taps) + 2, taps.shape[1])


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
    x, _, taps, bias = inputs
    ctx.save_for_backward(x, taps, bias)


def _differentiate(ctx: Any, out_gradient: Tensor) -> tuple[Tensor, ...]:
    x_gradient, sums = depthwise_gelu_backward(out_gradient, *ctx.saved_tensors)
    return x_gradient, sums[10], sums[:9], sums[9]


depthwise_gelu.register_autograd(_differentiate, setup_context=_save_inputs)
