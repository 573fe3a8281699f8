"""Colour for compiled views: the three channels as planes [B, H, W], so that a chain of operations is one kernel.

The equations are those of `colour`. Only contrast looks at the whole image, at its mean; the mean is computed first, by
going through what comes before contrast, and the chain itself then runs from end to end without a stop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views.colour import BRIGHTNESS, CONTRAST, HUE, grey_of, turn_hue

Planes = tuple[Tensor, Tensor, Tensor]


def split(images: Tensor) -> Planes:
    red, green, blue = images.float().unbind(1)
    return red, green, blue


def join(planes: Planes, dtype: torch.dtype) -> Tensor:
    """In memory the channels of a line lie side by side, as `crop` leaves them."""
    return torch.stack([plane.to(dtype) for plane in planes], dim=2).transpose(1, 2)


def jitter(planes: Planes, factors: Tensor, order: Tensor) -> Planes:
    turn = order.argsort(dim=1)[:, CONTRAST]
    before = planes
    for place in range(3):
        before = _at(place, before, factors, order, turn > place, mean=None)
    mean = grey_of(*before).mean(dim=(1, 2), keepdim=True).round()
    for place in range(4):
        planes = _at(place, planes, factors, order, None, mean)
    return planes


def _at(place: int, planes: Planes, factors: Tensor, order: Tensor, due: Tensor | None, mean: Tensor | None) -> Planes:
    """The operation that stands at this place for each image, if it is `due`."""
    which = order[:, place]
    factor = factors.gather(1, which[:, None])[:, 0]
    if due is not None:
        which = torch.where(due, which, BRIGHTNESS)
        factor = torch.where(due, factor, 1.0)
    is_hue = _wide(which == HUE)
    turned = turn_hue(*planes, torch.where(which == HUE, factor, 0.0))
    other = torch.where(_wide(which == BRIGHTNESS), 0.0, grey_of(*planes))
    if mean is not None:
        other = torch.where(_wide(which == CONTRAST), mean, other)
    blended = (torch.lerp(other, plane, _wide(factor)).clamp(0, 255) for plane in planes)
    red, green, blue = (torch.where(is_hue, t, b) for t, b in zip(turned, blended))
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
