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


def draw_blur(draws: Draws, radius: tuple[float, float], probability: float) -> Tensor:
    """[B]: with the given probability a radius (the Gaussian's deviation, in pixels) between the two, else 0."""
    u = draws.uniform("blur", 2)
    return torch.where(u[:, 0] < probability, radius[0] + (radius[1] - radius[0]) * u[:, 1], 0.0)


def blur(images: Tensor, radius: Tensor) -> Tensor:
    """The border is continued outwards, as PIL does it."""
    if images.device.type == "cpu":
        return apply_to(images, radius > 0, _blur, radius)
    return _blur(images, radius)


def _blur(images: Tensor, radius: Tensor) -> Tensor:
    batch, channels, height, width = images.shape
    down = _weights(radius, height, images.dtype)
    across = down if width == height else _weights(radius, width, images.dtype)
    rows = torch.bmm(down, images.transpose(1, 2).reshape(batch, height, -1))
    out = torch.bmm(rows.view(batch, height * channels, width), across.mT)
    return out.view(batch, height, channels, width).transpose(1, 2)


def _weights(radius: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[B, size, size]: PIL's Gaussian, which is three passes of a box whose outermost pixels count in part."""
    variance = (radius**2 / _PASSES)[:, None, None]
    half = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()
    part = (2 * half + 1) * (half * (half + 1) - 3 * variance) / (6 * (variance - (half + 1) ** 2))
    box = _box(half, part, size).to(dtype)
    return torch.bmm(torch.bmm(box, box), box)


def _box(half: Tensor, part: Tensor, size: int) -> Tensor:
    """Weight 1 up to `half` pixels away and `part` for the next; the first and last pixel stand for all beyond."""
    place = torch.arange(size, device=half.device)
    distance = (place[None, None] - place[None, :, None]).float()
    whole = 2 * (half + part) + 1

    def mass(distance: Tensor) -> Tensor:
        """Of all pixels up to the one at this distance."""
        up_to = torch.where(distance > half, whole, (part + distance + half + 1).clamp(min=0))
        return torch.where(distance < -half - 1, 0.0, up_to)

    upper = torch.where(place == size - 1, whole, mass(distance))
    lower = torch.where(place == 0, 0.0, mass(distance - 1))
    return (upper - lower) / whole
