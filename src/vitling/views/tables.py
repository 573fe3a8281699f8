"""Operations that map each value of a channel to another: posterise, solarise, invert, autocontrast, equalise.

Each is a table of 256 entries per image and channel, so a batch in which every image has another operation is one
look-up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """`tables` [B, C, 256]; images are rounded to whole values first, as PIL's are."""
    values = images.round().clamp(0, 255).long().flatten(2)
    return tables.to(images.dtype).gather(2, values).view_as(images)


def identity(batch: int, channels: int, device: torch.device) -> Tensor:
    return torch.arange(256.0, device=device).expand(batch, channels, 256)


def posterise(bits: Tensor, channels: int) -> Tensor:
    """Keeps the `bits` [B] highest bits."""
    step = 2.0 ** (8 - bits.round())[:, None]
    line = torch.arange(256.0, device=bits.device)[None]
    return ((line / step).floor() * step)[:, None].expand(-1, channels, -1)


def solarise(threshold: Tensor, channels: int) -> Tensor:
    line = torch.arange(256.0, device=threshold.device)[None]
    return torch.where(line < threshold[:, None], line, 255 - line)[:, None].expand(-1, channels, -1)


def solarise_add(amount: Tensor, channels: int, threshold: int = 128) -> Tensor:
    line = torch.arange(256.0, device=amount.device)[None]
    return torch.where(line < threshold, (line + amount[:, None]).clamp(max=255), line)[:, None].expand(
        -1, channels, -1
    )


def invert(batch: int, channels: int, device: torch.device) -> Tensor:
    return 255 - identity(batch, channels, device)


def autocontrast(images: Tensor) -> Tensor:
    """Each channel stretched to 0..255; a channel of one value stays."""
    whole = images.round().clamp(0, 255).flatten(2)
    low, high = whole.amin(dim=2, keepdim=True).double(), whole.amax(dim=2, keepdim=True).double()
    line = torch.arange(256, device=images.device)[None, None]
    scale = 255 / (high - low).clamp(min=1)
    stretched = (line * scale - low * scale).trunc().clamp(0, 255)  # in double, as PIL: it truncates
    return torch.where(high > low, stretched, line).float()


def equalise(images: Tensor) -> Tensor:
    """PIL's: the table follows the cumulated histogram in whole steps; a channel of one value stays."""
    counts = histograms(images)
    total = counts.sum(dim=2, keepdim=True)
    last = torch.where(counts > 0, torch.arange(256, device=images.device), -1).amax(dim=2, keepdim=True)
    step = (total - counts.gather(2, last)) // 255
    before = counts.cumsum(dim=2) - counts
    line = torch.arange(256, device=images.device).expand_as(counts)
    table = (before + step // 2) // step.clamp(min=1)
    several = (counts > 0).sum(dim=2, keepdim=True) > 1
    return torch.where(several & (step > 0), table.clamp(max=255), line).float()


def histograms(images: Tensor) -> Tensor:
    """int64 [B, C, 256]."""
    values = images.round().clamp(0, 255).long().flatten(2)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int64, device=images.device)
    return counts.scatter_add_(2, values, torch.ones_like(values))
