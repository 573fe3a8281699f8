"""Random erasing in pixel mode: a rectangle of the normalised view becomes standard normal noise."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from vitling.views.draws import Draws

AREA, RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)  # fraction of the view, and height / width: timm's defaults
_NOISE = 1 << 20  # numbers in the bank, a power of two


def draw_erasing(draws: Draws, probability: float, size: int) -> tuple[Tensor, ...]:
    """Draw top, left, height, width of the rectangle (0: no erasing) and an offset into the noise, each [B]."""
    u = draws.uniform("erase", 6)
    area = (AREA[0] + (AREA[1] - AREA[0]) * u[:, 1]) * size * size
    ratio = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * u[:, 2])
    height = torch.sqrt(area * ratio).round().clamp(max=size)
    width = torch.sqrt(area / ratio).round().clamp(max=size)
    top, left = (u[:, 3] * (size - height + 1)).floor(), (u[:, 4] * (size - width + 1)).floor()
    erased = u[:, 0] < probability
    return top, left, torch.where(erased, height, 0.0), torch.where(erased, width, 0.0), u[:, 5]


def erase(images: Tensor, numbers: tuple[Tensor, ...], noise: Tensor) -> Tensor:
    top, left, height, width, offset = numbers
    inside = rectangle(top, left, height, width, images.shape[-1])
    return torch.where(inside[:, None], _read_noise(noise, offset, images), images)


def rectangle(top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int) -> Tensor:
    """Make masks of rectangles, bool [B, size, size]."""
    line = torch.arange(size, device=top.device)[None]
    rows = (line >= top[:, None]) & (line < (top + height)[:, None])
    columns = (line >= left[:, None]) & (line < (left + width)[:, None])
    return rows[:, :, None] & columns[:, None, :]


def _read_noise(bank: Tensor, offset: Tensor, images: Tensor) -> Tensor:
    """Read noise for every pixel, from a different offset (in 0..1) of the bank for each image."""
    start = (offset * _NOISE).int()
    index = torch.arange(images[0].numel(), device=images.device, dtype=torch.int32)
    return bank[(start[:, None] + index) & (_NOISE - 1)].view_as(images).to(images.dtype)


@lru_cache
def noise_bank(device: torch.device) -> Tensor:
    """Return a fixed bank of standard normal noise."""
    return torch.randn(_NOISE, generator=torch.Generator().manual_seed(0)).to(device)
