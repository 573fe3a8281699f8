"""Position embeddings for a different grid: plain bicubic without antialiasing; class and register tokens are kept.

timm resamples with antialiasing and the papers' code does not. From 14 x 14 to 6 x 6 the results differ by 80 %.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]


def resize_positions(positions: Tensor, old: Grid, new: Grid) -> Tensor:
    """Resize embeddings [1, prefix + h*w, D] from the grid `old` to the grid `new`; prefix tokens stay unchanged."""
    if old == new:
        return positions
    prefix = positions.shape[1] - old[0] * old[1]
    kept, spatial = positions[:, :prefix], positions[:, prefix:]
    maps = spatial.reshape(1, *old, -1).permute(0, 3, 1, 2)
    maps = resize_map(maps, new)
    spatial = maps.permute(0, 2, 3, 1).reshape(1, new[0] * new[1], -1)
    return torch.cat([kept, spatial], dim=1)


def resize_map(maps: Tensor, new: Grid) -> Tensor:
    """Resize maps [..., h, w] by two products, because the gradient of F.interpolate is not deterministic on GPUs.

    The products are written out as sums, because matmul may use TF32 there.
    """
    row_weights, col_weights = (_bicubic_weights(*sides, maps.device) for sides in zip(maps.shape[-2:], new))
    rows = (row_weights[:, :, None] * maps.float()[..., None, :, :]).sum(-2)
    return (rows[..., None, :] * col_weights).sum(-1).to(maps.dtype)


def _bicubic_weights(old: int, new: int, device: torch.device) -> Tensor:
    """Return a matrix [new, old] with the weight of each old position in each new one."""
    ones = torch.eye(old, device=device)[None, None]
    return F.interpolate(ones, size=(new, old), mode="bicubic", align_corners=False, antialias=False)[0, 0]
