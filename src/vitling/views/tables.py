"""Operations that map values to values: posterise, solarise, invert, autocontrast, equalise.

Each is a table of 256 entries per image and channel, so a batch with a different operation per image is one look-up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Map images through `tables`, which broadcast to [B, C, 256]; they are rounded to integers first, as in PIL."""
    values = _round(images)
    return tables.to(images.dtype).expand(*values.shape[:2], 256).gather(2, values).view_as(images)


def identity(device: torch.device) -> Tensor:
    return torch.arange(256.0, device=device)


def posterise(bits: Tensor) -> Tensor:
    """Keep the `bits` [B] highest bits."""
    step = 2.0 ** (8 - bits.round())[:, None, None]
    return (identity(bits.device) / step).floor() * step


def solarise(threshold: Tensor) -> Tensor:
    line = identity(threshold.device)
    return torch.where(line < threshold[:, None, None], line, 255 - line)


def solarise_add(amount: Tensor) -> Tensor:
    """Add `amount` [B] to the values below 128."""
    line = identity(amount.device)
    return torch.where(line < 128, (line + amount[:, None, None]).clamp(max=255), line)


def invert(device: torch.device) -> Tensor:
    return 255 - identity(device)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a constant channel stays unchanged."""
    whole = images.round().clamp(0, 255).flatten(2)
    low, high = whole.amin(dim=2, keepdim=True).double(), whole.amax(dim=2, keepdim=True).double()
    line = torch.arange(256, device=images.device)[None, None]
    scale = 255 / (high - low).clamp(min=1)
    stretched = (line * scale - low * scale).trunc().clamp(0, 255)  # in double, as in PIL: it truncates
    return torch.where(high > low, stretched, line).float()


def equalise(images: Tensor) -> Tensor:
    """Follow the cumulative histogram in integer steps, as in PIL; a constant channel stays unchanged."""
    counts = count_values(images)
    total = counts.sum(dim=2, keepdim=True)
    last = torch.where(counts > 0, torch.arange(256, device=images.device), -1).amax(dim=2, keepdim=True)
    step = (total - counts.gather(2, last)) // 255
    before = counts.cumsum(dim=2) - counts
    line = torch.arange(256, device=images.device).expand_as(counts)
    table = (before + step // 2) // step.clamp(min=1)
    several = (counts > 0).sum(dim=2, keepdim=True) > 1
    return torch.where(several & (step > 0), table.clamp(max=255), line).float()


def count_values(images: Tensor) -> Tensor:
    """Count the pixels of each value, int64 [B, C, 256]."""
    values = _round(images)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(2, values, torch.ones_like(values))


def _round(images: Tensor) -> Tensor:
    """Round to integers in 0..255, int64 [B, C, H * W]."""
    return images.round().clamp(0, 255).long().flatten(2)
