"""Position embeddings at another grid: plain bicubic, no antialiasing, class and register tokens kept.

timm resamples with antialiasing; the papers' code does not, and on 14 -> 6 the two lie 80 % apart.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]


def resize_positions(positions: Tensor, old: Grid, new: Grid) -> Tensor:
    """[1, prefix + h*w, D] from the grid `old` to the grid `new`; the prefix tokens stay as they are."""
    if old == new:
        return positions
    prefix = positions.shape[1] - old[0] * old[1]
    kept, spatial = positions[:, :prefix], positions[:, prefix:]
    maps = spatial.reshape(1, *old, -1).permute(0, 3, 1, 2)
    maps = resize_map(maps, new)
    spatial = maps.permute(0, 2, 3, 1).reshape(1, new[0] * new[1], -1)
    return torch.cat([kept, spatial], dim=1)


def resize_map(maps: Tensor, new: Grid) -> Tensor:
    """[..., h, w]. As two products: the gradient of torch's own has no deterministic form on GPUs. They are written
    out, for torch's products are in TF32 there."""
    high, wide = (_bicubic(*sides, maps.device) for sides in zip(maps.shape[-2:], new))
    rows = (high[:, :, None] * maps.float()[..., None, :, :]).sum(-2)
    return (rows[..., None, :] * wide).sum(-1).to(maps.dtype)


def _bicubic(old: int, new: int, device: torch.device) -> Tensor:
    """[new, old]: what each new place takes from the old ones."""
    ones = torch.eye(old, device=device)[None, None]
    return F.interpolate(ones, size=(new, old), mode="bicubic", align_corners=False, antialias=False)[0, 0]
