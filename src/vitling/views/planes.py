"""Colour for compiled views: the three channels as planes [B, H, W], so that a chain of operations is one kernel.

The equations are those of `colour`. Only contrast looks at the whole image, at its mean; the mean is computed first, by
going through what comes before contrast, and the chain itself then runs from end to end without a stop. Every second
pixel of every second line is enough for a mean that is rounded to a whole number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views.colour import CONTRAST, HUE, SATURATION, grey_of, turn_hue

Planes = tuple[Tensor, Tensor, Tensor]


def split(images: Tensor) -> Planes:
    """An image of one channel has three equal ones."""
    red, green, blue = images.float().expand(-1, 3, -1, -1).unbind(1)
    return red, green, blue


def join(planes: Planes, dtype: torch.dtype) -> Tensor:
    """In memory the channels of a line lie side by side, as `crop` leaves them."""
    return torch.stack([_stored(plane.to(dtype)) for plane in planes], dim=2).transpose(1, 2)


def _stored(plane: Tensor) -> Tensor:
    """A fixed layout makes the compiler write the plane out. Otherwise it writes float32, or works the whole chain out
    again for each channel."""
    plane = plane.contiguous()
    return plane.as_strided(plane.shape, plane.stride())


def chain(factors: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """What `jitter` wants to know of factors and order: rows of [B, 10, 3] and turns [B, 2].

    Three of the four operations are blends, x' = clip(f x + a grey(x) + b mean): a row is (f, a, b), and (1, 0, 0) does
    nothing. Hue stands somewhere among them, so the chain is three blends, hue, three blends, of which each blend does
    its work on one side alone. Before it goes the same for the mean, as far as contrast: two blends, hue, two blends.
    """
    places = order.argsort(dim=1)
    gap = places[:, HUE]  # as many blends come before hue
    slot = places[:, CONTRAST] - (places[:, CONTRAST] > gap).long()  # of contrast, among the blends
    blends = [torch.where(s < gap, order[:, s], order[:, s + 1]) for s in range(3)]
    rows = [_row(factors, which) for which in blends]
    nothing = torch.tensor([1.0, 0.0, 0.0], device=factors.device)

    def where(due: Tensor, row: Tensor) -> Tensor:
        return torch.where(due[:, None], row, nothing)

    mean = [where((s < gap) & (s < slot), rows[s]) for s in range(2)]
    mean += [where((s >= gap) & (s < slot), rows[s]) for s in range(2)]
    whole = [where(s < gap, rows[s]) for s in range(3)] + [where(s >= gap, rows[s]) for s in range(3)]
    turns = factors[:, HUE]
    return torch.stack(mean + whole, dim=1), torch.stack([torch.where(gap <= slot, turns, 0.0), turns], dim=1)


def _row(factors: Tensor, which: Tensor) -> Tensor:
    factor = factors.gather(1, which[:, None])[:, 0]
    rest = 1 - factor
    of_grey, of_mean = torch.where(which == SATURATION, rest, 0.0), torch.where(which == CONTRAST, rest, 0.0)
    return torch.stack([factor, of_grey, of_mean], dim=1)


def jitter(planes: Planes, rows: Tensor, turns: Tensor) -> Planes:
    none = torch.zeros((), device=rows.device)
    red, green, blue = (plane[:, ::2, ::2] for plane in planes)
    before = _blend(_blend((red, green, blue), rows[:, 0], none), rows[:, 1], none)
    before = turn_hue(*before, turns[:, 0])
    before = _blend(_blend(before, rows[:, 2], none), rows[:, 3], none)
    mean = grey_of(*before).mean(dim=(1, 2), keepdim=True).round()
    for s in range(4, 7):
        planes = _blend(planes, rows[:, s], mean)
    planes = turn_hue(*planes, turns[:, 1])
    for s in range(7, 10):
        planes = _blend(planes, rows[:, s], mean)
    return planes


def _blend(planes: Planes, row: Tensor, mean: Tensor) -> Planes:
    factor, of_grey, of_mean = (_wide(column) for column in row.unbind(1))
    other = of_grey * grey_of(*planes) + of_mean * mean
    red, green, blue = ((factor * plane + other).clamp(0, 255) for plane in planes)
    return red, green, blue


def to_grey(planes: Planes, chosen: Tensor) -> Planes:
    value = grey_of(*planes)
    red, green, blue = (torch.where(_wide(chosen), value, plane) for plane in planes)
    return red, green, blue


def solarise(planes: Planes, chosen: Tensor, threshold: float) -> Planes:
    red, green, blue = (torch.where(_wide(chosen) & (p >= threshold), 255 - p, p) for p in planes)
    return red, green, blue


def _wide(x: Tensor) -> Tensor:
    """[B] -> [B, 1, 1]."""
    return x[:, None, None]
