"""Gaussian blur with a radius per image, as one small matrix an image: out = G @ image @ Gᵀ.

A blur is separable, and matrix products are what GPUs are for: a grouped convolution with 23 taps takes many times as
long. A radius of 0 gives the identity.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.views.chosen import apply_to, whole_batches
from vitling.views.draws import Draws

_PASSES = 3


def draw_blur(draws: Draws, radius: tuple[float, float], probability: float) -> Tensor:
    """[B]: with the given probability a radius (the Gaussian's deviation, in pixels) between the two, else 0."""
    u = draws.uniform("blur", 2)
    return torch.where(u[:, 0] < probability, radius[0] + (radius[1] - radius[0]) * u[:, 1], 0.0)


def blur(images: Tensor, radius: Tensor, most: float) -> Tensor:
    """`radius` [B], `most` at the highest. The border is continued outwards."""
    if whole_batches(images):
        return _blur(images, radius, most)
    return apply_to(images, radius > 0, lambda x, r: _blur(x, r, most), radius)


def _blur(images: Tensor, radius: Tensor, most: float) -> Tensor:
    batch, channels, height, width = images.shape
    mass = _mass(radius, most)
    down = _weights(mass, height).to(images.dtype)
    across = down if width == height else _weights(mass, width).to(images.dtype)
    rows = torch.bmm(down, images.transpose(1, 2).reshape(batch, height, -1))
    out = torch.bmm(rows.view(batch, height * channels, width), across.mT)
    return out.view(batch, height, channels, width).transpose(1, 2)


def _mass(radius: Tensor, most: float) -> Tensor:
    """[B, 2 R + 2]: how much of the kernel lies before its tap 0, 1, ..., 2 R + 1, where R is how far it reaches.

    PIL's Gaussian is three passes of a box whose outermost pixels count in part: weight 1 up to `half` pixels away and
    `part` for the next.
    """
    variance = (radius**2 / _PASSES)[:, None]
    half = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()
    part = (2 * half + 1) * (half * (half + 1) - 3 * variance) / (6 * (variance - (half + 1) ** 2))
    reach = int((math.sqrt(4 * most**2 + 1) - 1) / 2) + 1
    away = torch.arange(-reach, reach + 1, device=radius.device).abs()[None]
    box = torch.where(away <= half, 1.0, torch.where(away == half + 1, part, 0.0)) / (2 * (half + part) + 1)
    kernel = box
    for _ in range(_PASSES - 1):
        kernel = _convolved(kernel, box)
    return F.pad(kernel.cumsum(dim=1), (1, 0))


def _convolved(a: Tensor, b: Tensor) -> Tensor:
    last = b.shape[1] - 1
    return torch.stack([F.pad(a, (k, last - k)) * b[:, k : k + 1] for k in range(last + 1)]).sum(dim=0)


def _weights(mass: Tensor, size: int) -> Tensor:
    """[B, size, size]: row o holds what each pixel gives to pixel o; the first and last stand for all beyond."""
    place = torch.arange(size, device=mass.device)
    tap = place[None] - place[:, None] + mass.shape[1] // 2
    before = mass[:, (tap - 1).clamp(0, mass.shape[1] - 1)]
    after = mass[:, tap.clamp(0, mass.shape[1] - 1)]
    return torch.where(place == size - 1, 1.0, after) - torch.where(place == 0, 0.0, before)
