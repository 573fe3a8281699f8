"""Triton kernels of `depthwise`: a 3x3 convolution of each channel and a GELU.

Maps are [images, rows, columns, channels], contiguous. A program computes a strip of some columns and channels and goes
down its rows: each row is loaded once, ahead of time, and stays in registers while it is needed. Sums over images and
positions are written per strip and added in a fixed order afterwards, so results are deterministic.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

from vitling.data.cache import redirect_cache

# per strip; the fastest of nine settings on an H200
CONVOLVE = {"COLUMNS": 2, "CHANNELS": 128}
DIFFERENTIATE = {"COLUMNS": 4, "CHANNELS": 64}
OPTIONS = {"num_warps": 2, "enable_fp_fusion": True}  # Triton warns that its default for the second will change
SUMS = 10  # per channel: nine taps and the bias


@triton.jit
def _locate(width, channels, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return the image of this program, its index among the strips of its channels, its columns and its channels."""
    strip, channel_tiles = tl.program_id(0), tl.cdiv(channels, CHANNELS)
    channel = strip % channel_tiles * CHANNELS + tl.arange(0, CHANNELS)
    index = strip // channel_tiles
    column_tiles = tl.cdiv(width, COLUMNS)
    column = index % column_tiles * COLUMNS + tl.arange(0, COLUMNS)
    return (index // column_tiles).to(tl.int64), index, column[:, None], channel[None, :]


@triton.jit
def _load_row(x, row, column, channel, height, width, channels):
    """Load a row for the left, the middle and the right taps; 0 outside of the image."""
    known = (row < height) & (channel < channels)
    place = x + (row * width + column) * channels + channel
    left = tl.load(place - channels, mask=known & (column > 0) & (column <= width), other=0.0)
    middle = tl.load(place, mask=known & (column < width), other=0.0)
    right = tl.load(place + channels, mask=known & (column < width - 1), other=0.0)
    return left, middle, right


@triton.jit
def _convert(left, middle, right):
    return left.to(tl.float32), middle.to(tl.float32), right.to(tl.float32)


@triton.jit
def _load_taps(weight, channel, channels, ROW: tl.constexpr):
    """Load the weights of a row of taps."""
    place, known = weight + 3 * ROW * channels + channel, channel < channels
    left = tl.load(place, mask=known, other=0.0)
    middle = tl.load(place + channels, mask=known, other=0.0)
    right = tl.load(place + 2 * channels, mask=known, other=0.0)
    return left, middle, right


@triton.jit
def _normal_cdf(z, EXACT: tl.constexpr):
    """Compute the normal distribution function, and half of the slope of its logit.

    Unless EXACT, the logit is a polynomial fitted to the true one: GELU is then off by up to 2.5e-5, which is little
    beside the rounding of bf16 and fp16, and takes half of the instructions.
    """
    if EXACT:
        cdf = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
        slope = tl.exp(-0.5 * z * z) * 0.3989422804014327
    else:
        square = tl.minimum(z * z, 30.0)  # the fit holds up to |z| = 5.5, where the function is 0 or 1
        logit = z * (1.59501573 + square * (7.40113262e-02 - square * 7.03038788e-04))
        cdf = 1 / (1 + tl.exp(-logit))
        slope = cdf * (1 - cdf) * (1.59501573 + square * (0.2220339786 - square * 3.51519394e-03))
    return cdf, slope


@triton.jit(do_not_specialize=["height", "width"])
def _convolve(
    x, weight, bias, out, sums, height, width, channels,
    GELU: tl.constexpr, EXACT: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute gelu(convolution(x) + bias) if GELU, else convolution(x) and its sums over positions."""
    image, index, column, channel = _locate(width, channels, COLUMNS, CHANNELS)
    x += image * height * width * channels
    out += image * height * width * channels
    a0, a1, a2 = _load_taps(weight, channel, channels, 0)
    b0, b1, b2 = _load_taps(weight, channel, channels, 1)
    c0, c1, c2 = _load_taps(weight, channel, channels, 2)
    start = 0.0
    if GELU:
        start = tl.load(bias + channel, mask=channel < channels, other=0.0)
    above = tl.zeros((COLUMNS, CHANNELS), tl.float32)  # of the output's row above the one that is loaded
    here = above + start
    total = above
    top = tl.zeros((1, 1), tl.int32)
    first = _load_row(x, top, column, channel, height, width, channels)
    second = _load_row(x, top + 1, column, channel, height, width, channels)
    for row in range(height + 1):
        third = _load_row(x, top + row + 2, column, channel, height, width, channels)
        left, middle, right = _convert(*first)
        above += left * c0 + middle * c1 + right * c2
        if GELU:
            cdf, _ = _normal_cdf(above, EXACT)
            above *= cdf
        inside = (top + row > 0) & (column < width) & (channel < channels)
        tl.store(out + ((row - 1) * width + column) * channels + channel, above.to(out.dtype.element_ty), mask=inside)
        if not GELU:
            total += tl.where(inside, above, 0.0)
        above = here + left * b0 + middle * b1 + right * b2
        here = start + left * a0 + middle * a1 + right * a2
        first, second = second, third
    if not GELU:
        tl.store(sums + index * channels + channel, tl.sum(total, 0)[None, :], mask=channel < channels)


@triton.jit(do_not_specialize=["height", "width"])
def _differentiate(
    x, weight, bias, out_gradient, gradient, sums, height, width, channels,
    EXACT: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the convolution's output, and the sums that are the gradients of its taps and bias."""
    image, index, column, channel = _locate(width, channels, COLUMNS, CHANNELS)
    known = channel < channels
    x += image * height * width * channels
    out_gradient += image * height * width * channels
    gradient += image * height * width * channels
    a0, a1, a2 = _load_taps(weight, channel, channels, 0)
    b0, b1, b2 = _load_taps(weight, channel, channels, 1)
    c0, c1, c2 = _load_taps(weight, channel, channels, 2)
    start = tl.load(bias + channel, mask=known, other=0.0)
    total = tl.zeros((COLUMNS, CHANNELS), tl.float32)
    s00, s01, s02, s10, s11, s12, s20, s21, s22 = total, total, total, total, total, total, total, total, total
    x00, x01, x02 = total, total, total  # the row above, this row and the row below
    top = tl.zeros((1, 1), tl.int32)
    x10, x11, x12 = _convert(*_load_row(x, top, column, channel, height, width, channels))
    coming = _load_row(x, top + 1, column, channel, height, width, channels)
    inside = (column < width) & known
    place = column * channels + channel
    slope = tl.load(out_gradient + place, mask=inside, other=0.0)
    for row in range(height):
        x20, x21, x22 = _convert(*coming)
        coming = _load_row(x, top + row + 2, column, channel, height, width, channels)
        below = place + width * channels
        next_slope = tl.load(out_gradient + below, mask=inside & (top + row + 1 < height), other=0.0)
        z = start + x00 * a0 + x01 * a1 + x02 * a2 + x10 * b0 + x11 * b1 + x12 * b2 + x20 * c0 + x21 * c1 + x22 * c2
        cdf, pdf = _normal_cdf(z, EXACT)
        change = slope.to(tl.float32) * (cdf + z * pdf)
        tl.store(gradient + place, change.to(gradient.dtype.element_ty), mask=inside)
        total += change
        s00 += x00 * change
        s01 += x01 * change
        s02 += x02 * change
        s10 += x10 * change
        s11 += x11 * change
        s12 += x12 * change
        s20 += x20 * change
        s21 += x21 * change
        s22 += x22 * change
        x00, x01, x02, x10, x11, x12 = x10, x11, x12, x20, x21, x22
        slope, place = next_slope, below
    sums += index * 10 * channels + channel
    tl.store(sums, tl.sum(s00, 0)[None, :], mask=known)
    tl.store(sums + channels, tl.sum(s01, 0)[None, :], mask=known)
    tl.store(sums + 2 * channels, tl.sum(s02, 0)[None, :], mask=known)
    tl.store(sums + 3 * channels, tl.sum(s10, 0)[None, :], mask=known)
    tl.store(sums + 4 * channels, tl.sum(s11, 0)[None, :], mask=known)
    tl.store(sums + 5 * channels, tl.sum(s12, 0)[None, :], mask=known)
    tl.store(sums + 6 * channels, tl.sum(s20, 0)[None, :], mask=known)
    tl.store(sums + 7 * channels, tl.sum(s21, 0)[None, :], mask=known)
    tl.store(sums + 8 * channels, tl.sum(s22, 0)[None, :], mask=known)
    tl.store(sums + 9 * channels, tl.sum(total, 0)[None, :], mask=known)


def compute_output(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(convolution(x) + bias) of maps [B, H, W, C]; `taps` is [9, C]."""
    _keep_kernels(x.device)
    out = torch.empty_like(x)
    _launch(_convolve, CONVOLVE, x, taps, bias, out, out, GELU=True)
    return out


def compute_gradients(out_gradient: Tensor, x: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradient of x, its sums over images and positions, and [10, C] the gradients of taps and bias."""
    _keep_kernels(x.device)
    between, gradient = torch.empty_like(x), torch.empty_like(x)
    sums = torch.empty(_count_columns(x, DIFFERENTIATE), SUMS, x.shape[-1], device=x.device)
    _launch(_differentiate, DIFFERENTIATE, x, taps, bias, out_gradient, between, sums)
    x_sums = torch.empty(_count_columns(x, CONVOLVE), x.shape[-1], device=x.device)
    _launch(_convolve, CONVOLVE, between, taps.flip(0), bias, gradient, x_sums, GELU=False)
    return gradient, x_sums.sum(0), sums.sum(0)


@cache
def _keep_kernels(device: torch.device) -> None:
    """Keep compiled kernels where torch's compiler keeps its own, not in the user's home, which may not be writable."""
    if device.type == "cuda":
        redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device.index or 0))


def _launch(kernel: Any, strip: dict[str, int], x: Tensor, *tensors: Tensor, **constants: bool) -> None:
    strips = _count_columns(x, strip) * triton.cdiv(x.shape[-1], strip["CHANNELS"])
    exact = x.dtype not in (torch.bfloat16, torch.float16)
    kernel[(strips,)](x, *tensors, *x.shape[1:], EXACT=exact, **constants, **strip, **OPTIONS)


def _count_columns(x: Tensor, strip: dict[str, int]) -> int:
    """Count the strips of one group of channels."""
    return x.shape[0] * triton.cdiv(x.shape[2], strip["COLUMNS"])
