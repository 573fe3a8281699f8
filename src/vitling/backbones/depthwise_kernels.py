"""Triton kernels of `depthwise`: a 3x3 convolution of each channel and a GELU.

Maps are [images, rows, columns, channels], contiguous. A program computes strips of two columns and goes down their
rows: each row is loaded once, ahead of time, and stays in registers while it is needed. The kernels are bound by the
number of their instructions rather than by memory. Sums over images and positions are written per program and added in
a fixed order afterwards, so results are deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitling.backbones.kernels import set_kernel_cache

CHANNELS = 128  # of a strip: four for each thread of a warp
COLUMNS = 2  # of a strip
PROGRAMS = 8192  # a kernel has at least as many, if there are as many strips: several for each warp of a large GPU
# fused multiply-adds are exact enough here, and Triton warns where the choice is left open
OPTIONS = {"num_warps": 1, "enable_fp_fusion": True}
SUMS = tl.constexpr(11)  # per channel: gradients of nine taps, of the bias and of what was added to x


@triton.jit
def _number_units(x, tile, CHANNELS: tl.constexpr):
    """Number the channels of a strip, or their pairs if x has them in 32 bits."""
    if x.dtype.element_ty == tl.int32:
        units = tile * (CHANNELS // 2) + tl.arange(0, CHANNELS // 2)
    else:
        units = tile * CHANNELS + tl.arange(0, CHANNELS)
    return units


@triton.jit
def _locate(width, channels, strips, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return the image of this program, its index among those of its channels, its columns and its tile of channels."""
    program, channel_tiles = tl.program_id(0), tl.cdiv(channels, CHANNELS)
    index, parts = program // channel_tiles, tl.cdiv(width, strips * COLUMNS)
    first = index % parts * strips * COLUMNS
    tile = program % channel_tiles
    return (index // parts).to(tl.int64), index.to(tl.int64), first, tl.minimum(first + strips * COLUMNS, width), tile


@triton.jit
def _load_strip(x, row, column, unit, height, width, units):
    """Load a row of a strip; 0 outside of the image."""
    origin = tl.zeros(unit.shape, tl.int32)  # makes tensors of what the interpreter has as Python's numbers
    mask = (origin + row < height) & (unit < units)
    pointer = x + (row * width + column) * units + unit
    one = tl.load(pointer, mask=mask, other=0)
    return one, tl.load(pointer + units, mask=mask & (origin + column + 1 < width), other=0)


@triton.jit
def _load_row(x, row, column, unit, height, width, units):
    """Load a row of a strip and its neighbours to the left and to the right; 0 outside of the image."""
    origin = tl.zeros(unit.shape, tl.int32)
    mask = (origin + row < height) & (unit < units)
    pointer = x + (row * width + column) * units + unit
    left = tl.load(pointer - units, mask=mask & (origin + column > 0), other=0)
    right = tl.load(pointer + 2 * units, mask=mask & (origin + column + 2 < width), other=0)
    one, other = _load_strip(x, row, column, unit, height, width, units)
    return left, one, other, right


@triton.jit
def _convert(x):
    """Convert loaded values, which may be pairs of bf16, to fp32."""
    if x.dtype == tl.int32:
        low, high = (x << 16).to(tl.float32, bitcast=True), (x & -65536).to(tl.float32, bitcast=True)
        values = tl.reshape(tl.join(low, high), (2 * x.shape[0],))
    else:
        values = x.to(tl.float32)
    return values


@triton.jit
def _convert_row(row):
    return _convert(row[0]), _convert(row[1]), _convert(row[2]), _convert(row[3])


@triton.jit
def _load_taps(weight, channel, channels):
    """Load the weights of the rows above, in the middle and below."""
    mask = channel < channels
    pointer = weight + channel
    above = _load_three(pointer, channels, mask)
    middle = _load_three(pointer + 3 * channels, channels, mask)
    return above, middle, _load_three(pointer + 6 * channels, channels, mask)


@triton.jit
def _load_three(pointer, channels, mask):
    left, middle = tl.load(pointer, mask=mask, other=0.0), tl.load(pointer + channels, mask=mask, other=0.0)
    return left, middle, tl.load(pointer + 2 * channels, mask=mask, other=0.0)


@triton.jit
def _add(total, x, y, z, taps):
    """Add the products of a row of taps."""
    return tl.fma(z, taps[2], tl.fma(y, taps[1], tl.fma(x, taps[0], total)))


@triton.jit
def _add_row(totals, row, taps):
    """Add the products of a row of taps to both columns."""
    a, b, c, d = row
    return _add(totals[0], a, b, c, taps), _add(totals[1], b, c, d, taps)


@triton.jit
def _normal_cdf(z, EXACT: tl.constexpr, FAST: tl.constexpr):
    """Compute the normal distribution function and its slope.

    Unless EXACT, the logit is a polynomial fitted to the true one: GELU is then off by up to 2.5e-5 and its slope by
    1.1e-4, at most half the rounding of fp16 there. FAST takes the GPU's approximate instructions (errors of 2e-7).
    """
    if EXACT:
        cdf = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
        slope = tl.exp(-0.5 * z * z) * 0.3989422804014327
    else:
        square = tl.minimum(z * z, 30.0)  # the fit holds up to |z| = 5.5, where the function is 0 or 1
        # the logit in powers of 2, negative: -log2(e) (1.59501573 z + 7.40113262e-02 z^3 - 7.03038788e-04 z^5)
        power = z * tl.fma(square, tl.fma(square, 1.01427057e-03, -1.06775774e-01), -2.30112131)
        if FAST:
            cdf = tl.inline_asm_elementwise(
                "{ .reg .f32 t; ex2.approx.ftz.f32 t, $1; add.ftz.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t; }",
                "=f,f", [power], dtype=tl.float32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            cdf = 1 / (1 + tl.exp2(power))
        slope = cdf * (1 - cdf) * tl.fma(square, tl.fma(square, -3.51519394e-03, 0.2220339786), 1.59501573)
    return cdf, slope


@triton.jit
def _gelu(z, EXACT: tl.constexpr, FAST: tl.constexpr):
    cdf, _ = _normal_cdf(z, EXACT, FAST)
    return z * cdf


@triton.jit
def _gelu_slope(z, EXACT: tl.constexpr, FAST: tl.constexpr):
    cdf, slope = _normal_cdf(z, EXACT, FAST)
    return tl.fma(z, slope, cdf)


@triton.jit(do_not_specialize=["height", "width", "strips"])
def _convolve(
    x, weight, bias, out, sums, height, width, strips, units, channels,
    GELU: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute gelu(convolution(x) + bias) if GELU, else convolution(x) and its sums over positions."""
    origin = tl.zeros((1,), tl.int32)
    image, index, first, end, tile = _locate(width, channels, strips, COLUMNS, CHANNELS)
    unit = _number_units(x, tile, CHANNELS)
    channel = _number_units(out, tile, CHANNELS)
    mask = channel < channels
    x += image * height * width * units
    out += image * height * width * channels
    above, middle, below = _load_taps(weight, channel, channels)
    total = tl.zeros((CHANNELS,), tl.float32)
    start = total
    if GELU:
        start = tl.load(bias + channel, mask=mask, other=0.0)
    for column in range(first, end, COLUMNS):
        second = mask & (origin + column + 1 < width)
        next_row = _load_row(x, 1, column, unit, height, width, units)
        row_after = _load_row(x, 2, column, unit, height, width, units)
        values = _convert_row(_load_row(x, 0, column, unit, height, width, units))
        totals = _add_row((start, start), values, middle)  # the output's row, of which the last taps are missing
        next_totals = _add_row((start, start), values, above)  # the row below it
        pointer = out + column * channels + channel
        for row in range(height):
            values = _convert_row(next_row)
            next_row, row_after = row_after, _load_row(x, row + 3, column, unit, height, width, units)
            one, other = _add_row(totals, values, below)
            if GELU:
                one, other = _gelu(one, EXACT, FAST), _gelu(other, EXACT, FAST)
            tl.store(pointer, one.to(out.dtype.element_ty), mask=mask)
            tl.store(pointer + channels, other.to(out.dtype.element_ty), mask=second)
            if not GELU:
                total += one + tl.where(second, other, 0.0)
            totals = _add_row(next_totals, values, middle)
            next_totals = _add_row((start, start), values, above)
            pointer += width * channels
    if not GELU:
        tl.store(sums + (index * SUMS + 10) * channels + channel, total, mask=mask)


@triton.jit
def _add_products(sums, row, one, other):
    """Add the products of a row of x with the gradients of two columns to the sums of a row of taps."""
    a, b, c, d = row
    left, middle, right = sums
    left = tl.fma(b, other, tl.fma(a, one, left))
    middle = tl.fma(c, other, tl.fma(b, one, middle))
    return left, middle, tl.fma(d, other, tl.fma(c, one, right))


@triton.jit
def _store_sums(pointer, channels, sums, mask):
    tl.store(pointer, sums[0], mask=mask)
    tl.store(pointer + channels, sums[1], mask=mask)
    tl.store(pointer + 2 * channels, sums[2], mask=mask)


@triton.jit(do_not_specialize=["height", "width", "strips"])
def _differentiate(
    x, weight, bias, out_gradient, gradient, sums, height, width, strips, units, channels,
    EXACT: tl.constexpr, FAST: tl.constexpr,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the convolution's output, and the sums that are the gradients of its taps and bias."""
    origin = tl.zeros((1,), tl.int32)
    image, index, first, end, tile = _locate(width, channels, strips, COLUMNS, CHANNELS)
    unit = _number_units(x, tile, CHANNELS)
    channel = _number_units(gradient, tile, CHANNELS)
    mask = channel < channels
    x += image * height * width * units
    out_gradient += image * height * width * units
    gradient += image * height * width * channels
    above, middle, below = _load_taps(weight, channel, channels)
    start = tl.load(bias + channel, mask=mask, other=0.0)
    zero = tl.zeros((CHANNELS,), tl.float32)
    total, above_sums, middle_sums, below_sums = zero, (zero, zero, zero), (zero, zero, zero), (zero, zero, zero)
    for column in range(first, end, COLUMNS):
        second = mask & (origin + column + 1 < width)
        top, centre = (zero, zero, zero, zero), _convert_row(_load_row(x, 0, column, unit, height, width, units))
        next_row = _load_row(x, 1, column, unit, height, width, units)
        row_after = _load_row(x, 2, column, unit, height, width, units)
        slopes = _load_strip(out_gradient, 0, column, unit, height, width, units)
        next_slopes = _load_strip(out_gradient, 1, column, unit, height, width, units)
        pointer = gradient + column * channels + channel
        for row in range(height):
            bottom = _convert_row(next_row)
            next_row, row_after = row_after, _load_row(x, row + 3, column, unit, height, width, units)
            z = _add_row(_add_row(_add_row((start, start), top, above), centre, middle), bottom, below)
            one = _convert(slopes[0]) * _gelu_slope(z[0], EXACT, FAST)
            other = _convert(slopes[1]) * _gelu_slope(z[1], EXACT, FAST)
            slopes, next_slopes = next_slopes, _load_strip(out_gradient, row + 2, column, unit, height, width, units)
            tl.store(pointer, one.to(gradient.dtype.element_ty), mask=mask)
            tl.store(pointer + channels, other.to(gradient.dtype.element_ty), mask=second)
            pointer += width * channels
            total += one + other
            above_sums = _add_products(above_sums, top, one, other)
            middle_sums = _add_products(middle_sums, centre, one, other)
            below_sums = _add_products(below_sums, bottom, one, other)
            top, centre = centre, bottom
    sums += index * SUMS * channels + channel
    _store_sums(sums, channels, above_sums, mask)
    _store_sums(sums + 3 * channels, channels, middle_sums, mask)
    _store_sums(sums + 6 * channels, channels, below_sums, mask)
    tl.store(sums + 9 * channels, total, mask=mask)


def compute_output(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(convolution(x) + bias) of maps [B, H, W, C]; `taps` is [9, C]."""
    set_kernel_cache(x.device)
    out = torch.empty_like(x)
    _launch(_convolve, x, _pack(x), taps.contiguous(), bias.contiguous(), out, out, GELU=True)
    return out


def compute_gradients(out_gradient: Tensor, x: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradient of x and, as [11, C], those of taps and bias and the sums of that of x over positions."""
    set_kernel_cache(x.device)
    taps, bias = taps.contiguous(), bias.contiguous()
    between, gradient = torch.empty_like(x), torch.empty_like(x)
    sums = torch.empty(_count_parts(x), SUMS.value, x.shape[-1], device=x.device)
    _launch(_differentiate, x, _pack(x), taps, bias, _pack(out_gradient), between, sums)
    _launch(_convolve, x, _pack(between), taps.flip(0), bias, gradient, sums, GELU=False)
    return gradient, sums.sum(0)


def _launch(kernel: Any, x: Tensor, *tensors: Tensor, **constants: bool) -> None:
    height, width, channels = x.shape[1:]
    programs = _count_parts(x) * triton.cdiv(channels, CHANNELS)
    exact, fast = x.dtype not in (torch.bfloat16, torch.float16), x.is_cuda and torch.version.hip is None
    kernel[(programs,)](
        *tensors, height, width, _count_strips(x), tensors[0].shape[-1], channels, EXACT=exact, FAST=fast,
        COLUMNS=COLUMNS, CHANNELS=CHANNELS, **constants, **OPTIONS,
    )  # fmt: skip


def _pack(x: Tensor) -> Tensor:
    """View pairs of bf16 as numbers of 32 bits: loaded ahead of time, a pair then takes one register, not two."""
    return x.view(torch.int32) if x.dtype == torch.bfloat16 and x.shape[-1] % 2 == 0 else x


def _count_parts(x: Tensor) -> int:
    """Count the programs of one group of channels."""
    return x.shape[0] * triton.cdiv(x.shape[2], _count_strips(x) * COLUMNS)


def _count_strips(x: Tensor) -> int:
    """Count the strips of a program: about the same for all programs."""
    strips = triton.cdiv(x.shape[2], COLUMNS)
    several = x.shape[0] * strips * triton.cdiv(x.shape[3], CHANNELS) // PROGRAMS
    parts = triton.cdiv(strips, max(1, several))
    return triton.cdiv(strips, parts)
