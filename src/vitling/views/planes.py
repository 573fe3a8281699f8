"""Colour operations for compiled views: the channels are three planes [B, H, W], so that a chain is one kernel.

The equations are those of `colour`. Only contrast needs the whole image, for its mean. The mean is computed first, by
running the operations before contrast, and then the chain runs from end to end without a stop. Every second pixel of
every second line is enough for a mean that is rounded to an integer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views.colour import CONTRAST, HUE, SATURATION, grey_planes, shift_hue_planes

Planes = tuple[Tensor, Tensor, Tensor]


def split(images: Tensor) -> Planes:
    """Split into red, green and blue; one channel becomes three equal ones."""
    red, green, blue = images.float().expand(-1, 3, -1, -1).unbind(1)
    return red, green, blue


def join(planes: Planes, dtype: torch.dtype) -> Tensor:
    """Stack the planes; in memory the channels of a line lie side by side, as in the output of `crop`."""
    return torch.stack([_materialise(plane.to(dtype)) for plane in planes], dim=2).transpose(1, 2)


def _materialise(plane: Tensor) -> Tensor:
    """Fix the layout, which makes the compiler write the plane out.

    Otherwise it writes float32, or repeats the whole chain for each channel.
    """
    plane = plane.contiguous()
    return plane.as_strided(plane.shape, plane.stride())


def make_chain(factors: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Convert factors and order to the arguments of `jitter`: rows [B, 10, 3] and turns [B, 2].

    Three of the four operations are blends, x' = clip(f x + a grey(x) + b mean): a row is (f, a, b), and (1, 0, 0) does
    nothing. Hue comes somewhere among them, so the chain is three blends, hue, three blends, where each blend is active
    on one side only. Before it comes the same for the mean, up to contrast: two blends, hue, two blends.
    """
    positions = order.argsort(dim=1)
    gap = positions[:, HUE]  # number of blends before hue
    slot = positions[:, CONTRAST] - (positions[:, CONTRAST] > gap).long()  # position of contrast among the blends
    blends = [torch.where(s < gap, order[:, s], order[:, s + 1]) for s in range(3)]
    rows = [_make_row(factors, which) for which in blends]
    identity = torch.tensor([1.0, 0.0, 0.0], device=factors.device)

    def where(active: Tensor, row: Tensor) -> Tensor:
        return torch.where(active[:, None], row, identity)

    mean = [where((s < gap) & (s < slot), rows[s]) for s in range(2)]
    mean += [where((s >= gap) & (s < slot), rows[s]) for s in range(2)]
    full = [where(s < gap, rows[s]) for s in range(3)] + [where(s >= gap, rows[s]) for s in range(3)]
    turns = factors[:, HUE]
    return torch.stack(mean + full, dim=1), torch.stack([torch.where(gap <= slot, turns, 0.0), turns], dim=1)


def _make_row(factors: Tensor, which: Tensor) -> Tensor:
    factor = factors.gather(1, which[:, None])[:, 0]
    rest = 1 - factor
    of_grey, of_mean = torch.where(which == SATURATION, rest, 0.0), torch.where(which == CONTRAST, rest, 0.0)
    return torch.stack([factor, of_grey, of_mean], dim=1)


def jitter(planes: Planes, rows: Tensor, turns: Tensor) -> Planes:
    """Apply colour jitter; `rows` and `turns` come from `make_chain`."""
    zero = torch.zeros((), device=rows.device)
    red, green, blue = (plane[:, ::2, ::2] for plane in planes)
    before = _blend(_blend((red, green, blue), rows[:, 0], zero), rows[:, 1], zero)
    before = shift_hue_planes(*before, turns[:, 0])
    before = _blend(_blend(before, rows[:, 2], zero), rows[:, 3], zero)
    mean = grey_planes(*before).mean(dim=(1, 2), keepdim=True).round()
    for s in range(4, 7):
        planes = _blend(planes, rows[:, s], mean)
    planes = shift_hue_planes(*planes, turns[:, 1])
    for s in range(7, 10):
        planes = _blend(planes, rows[:, s], mean)
    return planes


def _blend(planes: Planes, row: Tensor, mean: Tensor) -> Planes:
    factor, of_grey, of_mean = (_expand(column) for column in row.unbind(1))
    other = of_grey * grey_planes(*planes) + of_mean * mean
    red, green, blue = ((factor * plane + other).clamp(0, 255) for plane in planes)
    return red, green, blue


def to_grey(planes: Planes, mask: Tensor) -> Planes:
    value = grey_planes(*planes)
    red, green, blue = (torch.where(_expand(mask), value, plane) for plane in planes)
    return red, green, blue


def solarise(planes: Planes, mask: Tensor, threshold: float) -> Planes:
    red, green, blue = (torch.where(_expand(mask) & (p >= threshold), 255 - p, p) for p in planes)
    return red, green, blue


def _expand(x: Tensor) -> Tensor:
    """Reshape values [B] to [B, 1, 1]."""
    return x[:, None, None]
