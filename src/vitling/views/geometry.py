"""Crops. A box is (left, top, width, height) as fractions of the image, so it fits the squashed store as it is.

A crop with its resize is two small matrices for each image, one along each axis: out = Y @ image @ Xᵀ. Their rows are
the filter's weights as PIL computes them for `resize(box=...)`, antialiasing included, and a flip turns X round.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitling.views.config import Filter
from vitling.views.draws import Draws

_ATTEMPTS = 10  # as torchvision's RandomResizedCrop, then the largest centred box of an allowed ratio


def random_boxes(draws: Draws, aspect: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """[B, 4] boxes with torchvision's distribution, for images of `aspect` = width / height."""
    u = draws.uniform("crop", 2 * _ATTEMPTS + 2)
    area = aspect[:, None] * (scale[0] + (scale[1] - scale[0]) * u[:, :_ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = torch.exp(low + (high - low) * u[:, _ATTEMPTS : 2 * _ATTEMPTS])
    width, height = torch.sqrt(area * shape) / aspect[:, None], torch.sqrt(area / shape)
    fits = (width <= 1) & (height <= 1)
    first = fits.to(torch.int8).argmax(dim=1, keepdim=True)  # argmax gives the first of equals
    found = fits.any(dim=1, keepdim=True)
    fallback = torch.stack([(ratio[1] / aspect).clamp(max=1), (aspect / ratio[0]).clamp(max=1)], dim=1)
    drawn = torch.cat([width.gather(1, first), height.gather(1, first)], dim=1)
    sides = torch.where(found, drawn, fallback)
    corner = torch.where(found, u[:, 2 * _ATTEMPTS :], 0.5) * (1 - sides)
    return torch.cat([corner, sides], dim=1)


def centre_boxes(aspect: Tensor, fraction: float) -> Tensor:
    """The square in the middle whose side is `fraction` of the shorter side."""
    width, height = fraction / aspect.clamp(min=1), fraction * aspect.clamp(max=1)
    return torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)


def crop(pixels: Tensor, boxes: Tensor, size: int, filter: Filter, flip: Tensor | None = None) -> Tensor:
    """uint8 [B, C, S, S] -> float [B, C, size, size] in 0..255; float16 on GPUs, where it is exact enough."""
    dtype = torch.float16 if pixels.is_cuda else torch.float32
    x = _weights(boxes[:, 0], boxes[:, 2], pixels.shape[-1], size, filter)
    y = _weights(boxes[:, 1], boxes[:, 3], pixels.shape[-2], size, filter)
    if flip is not None:
        x = torch.where(flip[:, None, None], x.flip(1), x)
    rows = torch.matmul(y[:, None].to(dtype), pixels.to(dtype))
    out = torch.matmul(rows, x[:, None].to(dtype).mT)
    return out.clamp(0, 255)


def _weights(start: Tensor, extent: Tensor, source: int, target: int, filter: Filter) -> Tensor:
    """[B, target, source]: row o holds what each source pixel gives to output pixel o."""
    device = start.device
    scale = extent * source / target
    out = torch.arange(target, device=device) + 0.5
    centre = (start * source)[:, None] + out[None] * scale[:, None]
    taps = torch.arange(source, device=device) + 0.5
    distance = (taps[None, None] - centre[:, :, None]) / scale.clamp(min=1)[:, None, None]
    weights = _triangle(distance) if filter == "bilinear" else _cubic(distance)
    return weights / weights.sum(dim=2, keepdim=True)


def _triangle(t: Tensor) -> Tensor:
    return (1 - t.abs()).clamp(min=0)


def _cubic(t: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5, PIL's choice."""
    t = t.abs()
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, near, torch.where(t < 2, far, 0.0))
