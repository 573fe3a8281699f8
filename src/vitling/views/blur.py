"""Gaussian blur with a radius per image, as one small matrix an image: out = G @ image @ Gᵀ.

A blur is separable, and matrix products are what GPUs are for: a grouped convolution with 23 taps takes many times as
long. A radius of 0 gives the identity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views.chosen import apply_to
from vitling.views.draws import Draws

_PASSES = 3


def blur(images: Tensor, draws: Draws, radius: tuple[float, float], probability: float) -> Tensor:
    """With the given probability, a radius (the Gaussian's deviation, in pixels) between the two."""
    u = draws.uniform("blur", 2)
    drawn = radius[0] + (radius[1] - radius[0]) * u[:, 1]
    return apply_to(images, u[:, 0] < probability, blur_by, drawn)


def blur_by(images: Tensor, radius: Tensor) -> Tensor:
    """`radius` [B] is given; the border is continued outwards, as PIL does it."""
    height, width = images.shape[-2:]
    down = _weights(radius, height).to(images.dtype)[:, None]
    across = down if width == height else _weights(radius, width).to(images.dtype)[:, None]
    return torch.matmul(torch.matmul(down, images), across.mT)


def _weights(radius: Tensor, size: int) -> Tensor:
    """[B, size, size]: PIL's Gaussian, which is three passes of a box whose outermost pixels count in part."""
    variance = (radius**2 / _PASSES)[:, None, None]
    half = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()
    part = (2 * half + 1) * (half * (half + 1) - 3 * variance) / (6 * (variance - (half + 1) ** 2))
    box = _box(half, part, size)
    return box @ box @ box


def _box(half: Tensor, part: Tensor, size: int) -> Tensor:
    """Weight 1 up to `half` pixels away and `part` for the next; the first and last pixel stand for all beyond."""
    place = torch.arange(size, device=half.device)
    distance = (place[None, None] - place[None, :, None]).float()
    up_to = torch.where(distance > half, 2 * (half + part) + 1, (part + distance + half + 1).clamp(min=0))
    up_to = torch.where(distance < -half - 1, 0.0, up_to)  # the mass of all pixels up to this one
    inner = up_to[:, :, :-1]
    whole = (2 * (half + part) + 1).expand(-1, size, 1)
    return torch.cat([inner, whole], dim=2).diff(dim=2, prepend=torch.zeros_like(whole)) / whole
