"""Rotation, shear and translation: an affine map per image, and one sampling for all of them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def warp(images: Tensor, maps: Tensor, fill: Tensor | None, filter: str = "bilinear") -> Tensor:
    """`maps` [B, 2, 3] take output pixels to input pixels, both measured from the image's middle, as PIL's AFFINE with
    the centre moved there. What comes from outside is `fill` [C, 1, 1], or continues the border."""
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
    """Counter-clockwise for a positive angle, as PIL's `rotate`."""
    angle = degrees * (math.pi / 180)
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([torch.stack([cos, -sin, none], 1), torch.stack([sin, cos, none], 1)], 1)


def shear_x(amount: Tensor) -> Tensor:
    one, none = torch.ones_like(amount), torch.zeros_like(amount)
    return torch.stack([torch.stack([one, amount, none], 1), torch.stack([none, one, none], 1)], 1)


def shear_y(amount: Tensor) -> Tensor:
    one, none = torch.ones_like(amount), torch.zeros_like(amount)
    return torch.stack([torch.stack([one, none, none], 1), torch.stack([amount, one, none], 1)], 1)


def translation(across: Tensor, down: Tensor) -> Tensor:
    """In pixels, of the map: the picture itself moves the other way, as in PIL's AFFINE."""
    one, none = torch.ones_like(across), torch.zeros_like(across)
    return torch.stack([torch.stack([one, none, across], 1), torch.stack([none, one, down], 1)], 1)
