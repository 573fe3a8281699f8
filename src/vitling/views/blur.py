"""Gaussian blur with a radius per image, as one small matrix per image: out = G @ image @ Gᵀ.

A blur is separable, and GPUs are made for matrix products: a grouped convolution with 23 taps takes many times as long.
A radius of 0 gives the identity.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.views.draws import Draws
from vitling.views.masked import apply_masked, works_on_whole_batch

_PASSES = 3  # of a box filter, as in PIL's GaussianBlur


def draw_blur(draws: Draws, radius: tuple[float, float], probability: float) -> Tensor:
    """Draw a radius [B] (the Gaussian's std in pixels) between the two with the given probability, else 0."""
    u = draws.uniform("blur", 2)
    return torch.where(u[:, 0] < probability, radius[0] + (radius[1] - radius[0]) * u[:, 1], 0.0)


def blur(images: Tensor, radius: Tensor, max_radius: float) -> Tensor:
    """Blur by `radius` [B], at most `max_radius`; the border is replicated outwards."""
    if works_on_whole_batch(images):
        return _blur(images, radius, max_radius)
    return apply_masked(images, radius > 0, lambda x, r: _blur(x, r, max_radius), radius)


def _blur(images: Tensor, radius: Tensor, max_radius: float) -> Tensor:
    batch, channels, height, width = images.shape
    cumulative = _cumulative_kernel(radius, max_radius)
    row_kernel = _make_weights(cumulative, height).to(images.dtype)
    col_kernel = row_kernel if width == height else _make_weights(cumulative, width).to(images.dtype)
    rows = torch.bmm(row_kernel, images.transpose(1, 2).reshape(batch, height, -1))
    out = torch.bmm(rows.view(batch, height * channels, width), col_kernel.mT)
    return out.view(batch, height, channels, width).transpose(1, 2)


def _cumulative_kernel(radius: Tensor, max_radius: float) -> Tensor:
    """Compute how much of the kernel lies before tap 0, 1, ..., 2 R + 1, [B, 2 R + 2], where R is its reach.

    PIL's Gaussian is three passes of a box whose outermost pixels count partly: weight 1 up to `half` pixels away and
    `edge` for the next.
    """
    variance = (radius**2 / _PASSES)[:, None]
    half = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()
    edge = (2 * half + 1) * (half * (half + 1) - 3 * variance) / (6 * (variance - (half + 1) ** 2))
    reach = int((math.sqrt(4 * max_radius**2 + 1) - 1) / 2) + 1
    away = torch.arange(-reach, reach + 1, device=radius.device).abs()[None]
    box = torch.where(away <= half, 1.0, torch.where(away == half + 1, edge, 0.0)) / (2 * (half + edge) + 1)
    kernel = box
    for _ in range(_PASSES - 1):
        kernel = _convolve(kernel, box)
    return F.pad(kernel.cumsum(dim=1), (1, 0))


def _convolve(a: Tensor, b: Tensor) -> Tensor:
    last = b.shape[1] - 1
    return torch.stack([F.pad(a, (k, last - k)) * b[:, k : k + 1] for k in range(last + 1)]).sum(dim=0)


def _make_weights(cumulative: Tensor, size: int) -> Tensor:
    """Return kernels [B, size, size] whose row o holds each pixel's weight in pixel o; a border pixel also has the
    weights of all pixels beyond it."""
    pixel = torch.arange(size, device=cumulative.device)
    tap = pixel[None] - pixel[:, None] + cumulative.shape[1] // 2
    before = cumulative[:, (tap - 1).clamp(0, cumulative.shape[1] - 1)]
    after = cumulative[:, tap.clamp(0, cumulative.shape[1] - 1)]
    return torch.where(pixel == size - 1, 1.0, after) - torch.where(pixel == 0, 0.0, before)
