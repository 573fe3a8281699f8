"""A literal depthwise convolution with GELU, and the differences of ours from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.depthwise import depthwise_gelu


def literal(x: Tensor, x_bias: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(convolution(x + x_bias) + bias) of [B, H, W, C] tap by tap; `weight` is [C, 1, 3, 3]."""
    height, width = x.shape[1:3]
    padded = F.pad(x + x_bias, (0, 0, 1, 1, 1, 1))
    out = torch.zeros_like(x) + bias
    for row in range(3):
        for column in range(3):
            out = out + padded[:, row : row + height, column : column + width] * weight[:, 0, row, column]
    return 0.5 * out * (1 + torch.erf(out / 2**0.5))


def compare(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> list[float]:
    """Compute relative errors of the output and of the gradients of x, x_bias, weight and bias."""
    generator, channels = torch.Generator().manual_seed(0), shape[-1]

    def draw(*sides: int) -> Tensor:
        return torch.randn(*sides, generator=generator).to(device)

    x, slope = draw(*shape).to(dtype), draw(*shape).to(dtype)
    parameters = [draw(channels).to(dtype).float(), draw(channels, 1, 3, 3), draw(channels)]
    exact = [tensor.double().requires_grad_() for tensor in (x, *parameters)]
    expected = literal(*exact)
    slopes = torch.autograd.grad(expected, exact, slope.double())

    x.requires_grad_()
    x_bias, weight, bias = (tensor.requires_grad_() for tensor in parameters)
    added = (x.float() + x_bias.detach()).to(dtype)
    found = depthwise_gelu(added, x_bias, weight.flatten(1).t(), bias)  # kernels take any strides of taps
    ours = torch.autograd.grad(found, [x, x_bias, weight, bias], slope)
    pairs = zip([found.detach(), *ours], [expected.detach(), *slopes])
    return [float((one.double() - other).norm() / other.norm()) for one, other in pairs]
