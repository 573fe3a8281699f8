"""Triton kernels of `depthwise`: a 3x3 convolution of each channel and a GELU.

Maps are [images, rows, columns, channels], contiguous. A warp computes a strip of several columns and goes down its
rows: each row is loaded once, ahead of time, and stays in registers while it is needed. The warps of a program take
neighbouring strips. The backward pass is one kernel. It needs the gradients of the convolution's output beside a strip
too: the warps of a program hand them to each other if they have whole rows, else they are computed twice. Sums over
images and positions are written per program and added in a fixed order afterwards, so results are deterministic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitling.backbones.gelu_kernels import gelu_slope, normal_cdf
from vitling.backbones.kernels import set_kernel_cache

MIN_STRIPS_IN_FLIGHT = 8192  # if there are as many: several for each warp that a large GPU runs at once
MAX_WARPS = 4  # of a program
# fused multiply-adds are exact enough here, and Triton warns where the choice is left open
OPTIONS = {"enable_fp_fusion": True}
SUMS = tl.constexpr(11)  # per channel: gradients of nine taps, of the bias and of what was added to x


class Strip(NamedTuple):
    """Columns and channels of a row that a warp computes."""

    columns: int
    channels: int
    registers: int  # of a thread at most, so that more warps run at once


# the first whose columns divide the width is taken; measured on an H200
FORWARD = (Strip(7, 64, 96), Strip(4, 64, 80))
BACKWARD = (Strip(7, 64, 168), Strip(4, 64, 128))


@triton.jit
def _locate(
    x, programs_per_row, units: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr
):
    """Return the group of images of this program, and the column and the unit of x at which each lane begins.

    A unit is a channel, or a pair of channels if x has them in 32 bits.
    """
    UNITS: tl.constexpr = CHANNELS // 2 if x.dtype.element_ty == tl.int32 else CHANNELS
    tiles: tl.constexpr = (units + UNITS - 1) // UNITS
    program, lane = tl.program_id(0), tl.arange(0, STRIPS * UNITS)
    index = program // tiles
    column = (index % programs_per_row * STRIPS + lane // UNITS) * COLUMNS
    return index // programs_per_row, column, program % tiles * UNITS + lane % UNITS


@triton.jit
def _make_row():
    """Return an empty row, to which columns are added. Triton 3.6 takes no empty tuple elsewhere."""
    return ()


@triton.jit
def _is_inside(row, height, column):
    """Check for each lane whether a row is inside of the image."""
    return column * 0 + row < height  # a tensor; the interpreter has plain numbers as Python's


@triton.jit
def _check(column, unit, width, units: tl.constexpr, WHOLE: tl.constexpr):
    """Check whether a column and a unit are inside of the image; if WHOLE, it is known that the unit is."""
    inside = (column >= 0) & (column < width)
    if not WHOLE:
        inside &= unit < units
    return inside


@triton.jit
def _load_row(
    pointer, inside, column, unit, width, units: tl.constexpr,
    COLUMNS: tl.constexpr, BESIDE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Load a row of a strip and some columns on both sides; 0 outside of the image."""
    row = _make_row()
    for i in tl.static_range(COLUMNS + 2 * BESIDE):
        mask = inside
        if not WHOLE or (i < BESIDE or i >= COLUMNS + BESIDE):
            mask = inside & _check(column + (i - BESIDE), unit, width, units, WHOLE)
        row += (tl.load(pointer + (i - BESIDE) * units, mask=mask, other=0),)
    return row


@triton.jit
def _store_row(
    pointer, row, inside, column, unit, width, units: tl.constexpr, COLUMNS: tl.constexpr, WHOLE: tl.constexpr
):
    """Store a row of a strip."""
    for i in tl.static_range(COLUMNS):
        mask = inside
        if not WHOLE:
            mask = inside & _check(column + i, unit, width, units, WHOLE)
        tl.store(pointer + i * units, row[i].to(pointer.dtype.element_ty), mask=mask)


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
def _convert_row(row, COLUMNS: tl.constexpr):
    values = _make_row()
    for i in tl.static_range(COLUMNS):
        values += (_convert(row[i]),)
    return values


@triton.jit
def _repeat(value, TIMES: tl.constexpr):
    row = _make_row()
    for _ in tl.static_range(TIMES):
        row += (value,)
    return row


@triton.jit
def _load_taps(weight, channel, channels: tl.constexpr):
    """Load the weights of the rows above, in the middle and below."""
    mask = channel < channels
    pointer = weight + channel
    above = _load_three(pointer, channels, mask)
    middle = _load_three(pointer + 3 * channels, channels, mask)
    return above, middle, _load_three(pointer + 6 * channels, channels, mask)


@triton.jit
def _load_three(pointer, channels: tl.constexpr, mask):
    left, middle = tl.load(pointer, mask=mask, other=0.0), tl.load(pointer + channels, mask=mask, other=0.0)
    return left, middle, tl.load(pointer + 2 * channels, mask=mask, other=0.0)


@triton.jit
def _reverse(taps):
    return taps[2], taps[1], taps[0]


@triton.jit
def _add_row(totals, row, taps, COLUMNS: tl.constexpr, BESIDE: tl.constexpr):
    """Add the products of a row of taps to columns. The row has BESIDE more on both sides; without, they are 0."""
    added = _make_row()
    for i in tl.static_range(COLUMNS):
        total = totals[i]
        for k in tl.static_range(3):
            if i + k - 1 + BESIDE >= 0 and i + k - 1 + BESIDE < COLUMNS + 2 * BESIDE:
                total = tl.fma(row[i + k - 1 + BESIDE], taps[k], total)
        added += (total,)
    return added


@triton.jit
def _add_products(sums, row, gradients, COLUMNS: tl.constexpr, AROUND: tl.constexpr):
    """Add the products of a row of x with gradients of the output to the sums of a row of taps.

    The row has AROUND more columns on both sides. With two, `gradients` has one more column on each side.
    """
    added = _make_row()
    for k in tl.static_range(3):
        total = sums[k]
        for i in tl.static_range(COLUMNS):
            if i + k - 1 + AROUND >= 0 and i + k - 1 + AROUND < COLUMNS + 2 * AROUND:
                total = tl.fma(row[i + k - 1 + AROUND], gradients[i + AROUND // 2], total)
        added += (total,)
    return added


@triton.jit
def _exchange(row, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr):
    """Add the nearest columns of the strips on both sides to a row, 0 outside of the image."""
    lane, last = tl.arange(0, STRIPS * CHANNELS), STRIPS * CHANNELS - CHANNELS
    left = tl.gather(row[COLUMNS - 1], tl.maximum(lane - CHANNELS, 0), 0)
    right = tl.gather(row[0], tl.minimum(lane + CHANNELS, STRIPS * CHANNELS - 1), 0)
    wider = _make_row()
    wider += (tl.where(lane < CHANNELS, 0.0, left),)
    wider += row
    wider += (tl.where(lane < last, right, 0.0),)
    return wider


@triton.jit
def _add_up(row, FIRST: tl.constexpr, END: tl.constexpr):
    total = row[FIRST]
    for i in tl.static_range(FIRST + 1, END):
        total += row[i]
    return total


@triton.jit
def _gelu_row(row, COLUMNS: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr):
    values = _make_row()
    for i in tl.static_range(COLUMNS):
        cdf, _ = normal_cdf(row[i], EXACT, FAST)
        values += (row[i] * cdf,)
    return values


@triton.jit
def _differentiate_row(slopes, row, COLUMNS: tl.constexpr, EXACT: tl.constexpr, FAST: tl.constexpr):
    """Compute the gradients of the convolution's output from those of GELU's output, `slopes`."""
    values = _make_row()
    for i in tl.static_range(COLUMNS):
        values += (_convert(slopes[i]) * gelu_slope(row[i], EXACT, FAST),)
    return values


@triton.jit(do_not_specialize=["images", "height", "width", "programs_per_row", "images_per_program"])
def _convolve(
    x, weight, bias, out, images, height, width, programs_per_row, images_per_program,
    units: tl.constexpr, channels: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr, WHOLE: tl.constexpr, BESIDE: tl.constexpr,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    """Compute gelu(convolution(x) + bias)."""
    group, column, unit = _locate(x, programs_per_row, units, COLUMNS, CHANNELS, STRIPS)
    _, out_column, channel = _locate(out, programs_per_row, channels, COLUMNS, CHANNELS, STRIPS)
    always = out_column >= 0
    above, middle, below = _load_taps(weight, channel, channels)
    start = _repeat(tl.load(bias + channel, mask=channel < channels, other=0.0), COLUMNS)
    at, out_at = column * units + unit, out_column * channels + channel
    origin, size = group.to(tl.int64) * images_per_program * height * width, height * width
    image = x + origin * units
    out_image = out + origin * channels
    for _ in range(tl.minimum(images_per_program, images - group * images_per_program)):
        pointer, target = image, out_image
        image, out_image = image + size * units, out_image + size * channels
        first = _load_row(pointer + at, column >= 0, column, unit, width, units, COLUMNS, BESIDE, WHOLE)
        pointer += width * units
        next_row = _load_row(
            pointer + at, _is_inside(1, height, column), column, unit, width, units, COLUMNS, BESIDE, WHOLE
        )
        values = _convert_row(first, COLUMNS + 2 * BESIDE)
        totals = _add_row(start, values, middle, COLUMNS, BESIDE)  # the output's row, without its last taps
        next_totals = _add_row(start, values, above, COLUMNS, BESIDE)  # the row below it
        for row in range(height):
            values = _convert_row(next_row, COLUMNS + 2 * BESIDE)
            pointer += width * units
            inside = _is_inside(row + 2, height, column)
            next_row = _load_row(pointer + at, inside, column, unit, width, units, COLUMNS, BESIDE, WHOLE)
            done = _gelu_row(_add_row(totals, values, below, COLUMNS, BESIDE), COLUMNS, EXACT, FAST)
            _store_row(target + out_at, done, always, out_column, channel, width, channels, COLUMNS, WHOLE)
            target += width * channels
            totals = _add_row(next_totals, values, middle, COLUMNS, BESIDE)
            next_totals = _add_row(start, values, above, COLUMNS, BESIDE)


@triton.jit
def _locate_sums(sums, channels: tl.constexpr, CHANNELS: tl.constexpr):
    """Return where this program's sums begin, and its channels."""
    tiles: tl.constexpr = (channels + CHANNELS - 1) // CHANNELS
    index = (tl.program_id(0) // tiles).to(tl.int64)
    return sums + index * SUMS * channels, tl.program_id(0) % tiles * CHANNELS + tl.arange(0, CHANNELS)


@triton.jit
def _store_sum(pointer, total, channel, channels: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr):
    """Store the sum of the strips of a program."""
    if STRIPS > 1:
        total = tl.sum(tl.reshape(total, (STRIPS, CHANNELS)), 0)
    tl.store(pointer + channel, total, mask=channel < channels)


@triton.jit
def _store_sums(pointer, sums, channel, channels: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr):
    for k in tl.static_range(3):
        _store_sum(pointer + k * channels, sums[k], channel, channels, CHANNELS, STRIPS)


@triton.jit(do_not_specialize=["images", "height", "width", "programs_per_row", "images_per_program"])
def _differentiate(
    x, weight, bias, out_gradient, gradient, sums, images, height, width, programs_per_row, images_per_program,
    units: tl.constexpr, channels: tl.constexpr,
    EXACT: tl.constexpr, FAST: tl.constexpr, WHOLE: tl.constexpr, AROUND: tl.constexpr,
    COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x, and the sums that are the gradients of taps, bias and of what was added to x.

    AROUND is how many columns of x beside a strip are needed: none if it is as wide as the image; one if the program
    has all strips of a row, which exchange gradients; else two, and the gradients beside the strip are computed twice.
    """
    BESIDE: tl.constexpr = 1 if AROUND > 0 else 0
    TWICE: tl.constexpr = AROUND // 2  # the columns on both sides whose gradients are computed twice
    WIDE: tl.constexpr = COLUMNS + 2 * TWICE
    group, column, unit = _locate(x, programs_per_row, units, COLUMNS, CHANNELS, STRIPS)
    _, out_column, channel = _locate(gradient, programs_per_row, channels, COLUMNS, CHANNELS, STRIPS)
    above, middle, below = _load_taps(weight, channel, channels)
    start = _repeat(tl.load(bias + channel, mask=channel < channels, other=0.0), WIDE)
    zero = tl.zeros((STRIPS * CHANNELS,), tl.float32)
    zeros = _repeat(zero, COLUMNS)
    total, x_total = zero, zero
    above_sums, middle_sums, below_sums = (zero, zero, zero), (zero, zero, zero), (zero, zero, zero)
    at, out_at = column * units + unit, out_column * channels + channel
    origin, size = group.to(tl.int64) * images_per_program * height * width, height * width
    image = x + origin * units
    slope_image = out_gradient + origin * units
    target_image = gradient + (origin - width) * channels
    for _ in range(tl.minimum(images_per_program, images - group * images_per_program)):
        pointer, slope, target = image, slope_image, target_image
        image, slope_image = image + size * units, slope_image + size * units
        target_image += size * channels
        first = _load_row(pointer + at, column >= 0, column, unit, width, units, COLUMNS, AROUND, WHOLE)
        slopes = _load_row(slope + at, column >= 0, column, unit, width, units, COLUMNS, TWICE, WHOLE)
        pointer += width * units
        next_row = _load_row(
            pointer + at, _is_inside(1, height, column), column, unit, width, units, COLUMNS, AROUND, WHOLE
        )
        top, centre = _repeat(zero, COLUMNS + 2 * AROUND), _convert_row(first, COLUMNS + 2 * AROUND)
        totals, next_totals = (
            zeros,
            zeros,
        )  # of the row above and of this one, without the rows to come
        for row in range(height):
            bottom = _convert_row(next_row, COLUMNS + 2 * AROUND)
            pointer += width * units
            inside = _is_inside(row + 2, height, column)
            next_row = _load_row(pointer + at, inside, column, unit, width, units, COLUMNS, AROUND, WHOLE)
            z = _add_row(_add_row(start, top, above, WIDE, BESIDE), centre, middle, WIDE, BESIDE)
            z = _add_row(z, bottom, below, WIDE, BESIDE)
            gradients = _differentiate_row(slopes, z, WIDE, EXACT, FAST)
            slope += width * units
            inside = _is_inside(row + 1, height, column)
            slopes = _load_row(slope + at, inside, column, unit, width, units, COLUMNS, TWICE, WHOLE)
            total += _add_up(gradients, TWICE, COLUMNS + TWICE)
            above_sums = _add_products(above_sums, top, gradients, COLUMNS, AROUND)
            middle_sums = _add_products(middle_sums, centre, gradients, COLUMNS, AROUND)
            below_sums = _add_products(below_sums, bottom, gradients, COLUMNS, AROUND)
            if AROUND == 1:
                gradients = _exchange(gradients, COLUMNS, CHANNELS, STRIPS)
            done = _add_row(totals, gradients, _reverse(above), COLUMNS, BESIDE)
            inside = out_column * 0 + row > 0
            _store_row(target + out_at, done, inside, out_column, channel, width, channels, COLUMNS, WHOLE)
            x_total += tl.where(inside, _add_inside(done, out_column, width, COLUMNS, WHOLE), 0.0)
            target += width * channels
            totals = _add_row(next_totals, gradients, _reverse(middle), COLUMNS, BESIDE)
            next_totals = _add_row(zeros, gradients, _reverse(below), COLUMNS, BESIDE)
            top, centre = centre, bottom
        _store_row(target + out_at, totals, out_column >= 0, out_column, channel, width, channels, COLUMNS, WHOLE)
        x_total += _add_inside(totals, out_column, width, COLUMNS, WHOLE)
    sums, channel = _locate_sums(sums, channels, CHANNELS)
    _store_sums(sums, above_sums, channel, channels, CHANNELS, STRIPS)
    _store_sums(sums + 3 * channels, middle_sums, channel, channels, CHANNELS, STRIPS)
    _store_sums(sums + 6 * channels, below_sums, channel, channels, CHANNELS, STRIPS)
    _store_sum(sums + 9 * channels, total, channel, channels, CHANNELS, STRIPS)
    _store_sum(sums + 10 * channels, x_total, channel, channels, CHANNELS, STRIPS)


@triton.jit
def _add_inside(row, column, width, COLUMNS: tl.constexpr, WHOLE: tl.constexpr):
    """Add up the columns of a row that are in the image."""
    total = row[0]  # begins inside of the image: strips do
    for i in tl.static_range(1, COLUMNS):
        total += row[i] if WHOLE else tl.where(column + i < width, row[i], 0.0)
    return total


def compute_output(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(convolution(x) + bias) of maps [B, H, W, C]; `taps` is [9, C]."""
    set_kernel_cache(x.device)
    out, layout = torch.empty_like(x), _lay_out(x, FORWARD)
    beside = int(x.shape[2] > layout.strip.columns)
    _launch(
        _convolve, layout, layout.strip.registers, x, _pack(x), taps.contiguous(), bias.contiguous(), out, BESIDE=beside
    )
    return out


def compute_gradients(out_gradient: Tensor, x: Tensor, taps: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradient of x and, as [11, C], those of taps and bias and the sums of that of x over positions."""
    set_kernel_cache(x.device)
    gradient, layout = torch.empty_like(x), _lay_out(x, BACKWARD)
    sums = torch.empty(layout.image_groups * layout.programs_per_row, SUMS.value, x.shape[-1], device=x.device)
    around = 2 if layout.programs_per_row > 1 else int(layout.strips > 1)
    registers = None if around == 2 else layout.strip.registers  # with fewer it would spill
    tensors = (_pack(x), taps.contiguous(), bias.contiguous(), _pack(out_gradient), gradient, sums)
    _launch(_differentiate, layout, registers, x, *tensors, AROUND=around)
    return gradient, sums.sum(0)


class Layout(NamedTuple):
    """How maps are divided into programs."""

    strip: Strip
    strips: int  # of a program, side by side
    programs_per_row: int
    images_per_program: int
    image_groups: int


def _lay_out(x: Tensor, choices: tuple[Strip, ...]) -> Layout:
    images, _, width, channels = x.shape
    strip = next((choice for choice in choices if width % choice.columns == 0), choices[-1])
    across = triton.cdiv(width, strip.columns)
    strips = next(warps for warps in (MAX_WARPS, 2, 1) if across % warps == 0)
    total = images * across * triton.cdiv(channels, strip.channels)
    images_per_program = max(1, total // MIN_STRIPS_IN_FLIGHT)
    return Layout(strip, strips, across // strips, images_per_program, triton.cdiv(images, images_per_program))


def _launch(kernel: Any, layout: Layout, registers: int | None, x: Tensor, *tensors: Tensor, **constants: int) -> None:
    images, height, width, channels = x.shape
    strip, tiles = layout.strip, triton.cdiv(channels, layout.strip.channels)
    exact, cuda = x.dtype not in (torch.bfloat16, torch.float16), x.is_cuda and torch.version.hip is None
    limit = {"maxnreg": registers} if cuda and registers else {}
    kernel[(layout.image_groups * layout.programs_per_row * tiles,)](
        *tensors, images, height, width, layout.programs_per_row, layout.images_per_program,
        tensors[0].shape[-1], channels,
        EXACT=exact, FAST=cuda, WHOLE=width % strip.columns == 0 and channels % strip.channels == 0,
        COLUMNS=strip.columns, CHANNELS=strip.channels, STRIPS=layout.strips,
        num_warps=layout.strips, **constants, **limit, **OPTIONS,
    )  # fmt: skip


def _pack(x: Tensor) -> Tensor:
    """View pairs of bf16 as numbers of 32 bits: loaded ahead of time, a pair then takes one register, not two."""
    return x.view(torch.int32) if x.dtype == torch.bfloat16 and x.shape[-1] % 2 == 0 else x
