"""Rotation, shear and translation: one affine map per image, sampled together."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def warp(images: Tensor, maps: Tensor, fill: Tensor | None, filter: str = "bilinear") -> Tensor:
    """Sample images through `maps` [B, 2, 3] from output to input pixels, both measured from the image's centre.

    The outside is `fill` [C, 1, 1], or the replicated border.
    """
    height, width = images.shape[-2:]
    across = torch.stack([maps[:, 0, 0], maps[:, 0, 1] * (height / width), maps[:, 0, 2] * (2 / width)], dim=1)
    down = torch.stack([maps[:, 1, 0] * (width / height), maps[:, 1, 1], maps[:, 1, 2] * (2 / height)], dim=1)
    theta = torch.stack([across, down], dim=1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    if fill is None:
        moved = F.grid_sample(images.float(), grid, mode=filter, padding_mode="border", align_corners=False)
        return moved.to(images.dtype)
    shifted = images.float() - fill
    moved = F.grid_sample(shifted, grid, mode=filter, padding_mode="zeros", align_corners=False)
    return (moved + fill).clamp(0, 255).to(images.dtype)


def identity(batch: int, device: torch.device) -> Tensor:
    return torch.eye(2, 3, device=device).expand(batch, 2, 3)


def rotation(degrees: Tensor) -> Tensor:
    """Make maps that rotate counter-clockwise for positive angles, as in PIL."""
    angle = degrees * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return _join_maps(cos, -sin, zero, sin, cos, zero)


def shear_x(amount: Tensor, shift: Tensor) -> Tensor:
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    return _join_maps(one, amount, shift, zero, one, zero)


def shear_y(amount: Tensor, shift: Tensor) -> Tensor:
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    return _join_maps(one, zero, zero, amount, one, shift)


def translation(across: Tensor, down: Tensor) -> Tensor:
    """Make maps that translate by pixels; the picture itself moves the other way, as in PIL's AFFINE."""
    one, zero = torch.ones_like(across), torch.zeros_like(across)
    return _join_maps(one, zero, across, zero, one, down)


def _join_maps(*entries: Tensor) -> Tensor:
    """Join six entries [B], row by row, to maps [B, 2, 3]."""
    return torch.stack(entries, dim=1).unflatten(1, (2, 3))
