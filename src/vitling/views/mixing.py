"""Mixup and CutMix of a view with a partner's view."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitling.views.config import Mix
from vitling.views.draws import Draws
from vitling.views.erasing import rectangle


class Recipe(NamedTuple):
    """How each image is mixed, [B] each: at all, by CutMix, how much of it stays, and where the box lies."""

    mixed: Tensor
    cut: Tensor
    share: Tensor
    across: Tensor
    down: Tensor


def draw_mix(draws: Draws, mix: Mix) -> Recipe:
    u = draws.uniform("mix", 4)
    cut = u[:, 1] < (mix.switch if mix.mixup > 0 and mix.cutmix > 0 else float(mix.cutmix > 0))
    share = torch.where(cut, draws.beta("cutmix", mix.cutmix or 1.0), draws.beta("mixup", mix.mixup or 1.0))
    if mix.fold:
        share = torch.maximum(share, 1 - share)
    return Recipe(u[:, 0] < mix.prob, cut, share, u[:, 2], u[:, 3])


def mix_rows(images: Tensor, own: Tensor, partner: Tensor, *recipe: Tensor) -> tuple[Tensor, Tensor]:
    """The rows `own` of `images`, each mixed with its row of `partner`."""
    return mix_images(images[own], images[partner], *recipe)


def mix_images(
    own: Tensor, partner: Tensor, mixed: Tensor, cut: Tensor, share: Tensor, across: Tensor, down: Tensor
) -> tuple[Tensor, Tensor]:
    """The mixed images, and lambda [B]: the share of the first image that is really there.

    `own` and `partner` are both unmixed, so no pixel is read that was already overwritten.
    """
    inside, kept = _cut_box(share, across, down, own.shape[-1])
    blend = torch.lerp(partner, own, share.to(own.dtype)[:, None, None, None])
    pasted = torch.where(inside[:, None], partner, own)
    images = torch.where(cut[:, None, None, None], pasted, blend)
    images = torch.where(mixed[:, None, None, None], images, own)
    return images, torch.where(mixed, torch.where(cut, kept, share), 1.0)


def _cut_box(share: Tensor, across: Tensor, down: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """A box of area 1 - share round a random centre, clipped at the border; and the area really kept."""
    half = (size * torch.sqrt(1 - share)).floor() / 2
    edges = []
    for place in (down, across):
        centre = (place * size).floor()
        edges += [(centre - half).floor().clamp(0, size), (centre + half).floor().clamp(0, size)]
    top, bottom, left, right = edges
    inside = rectangle(top, left, bottom - top, right - left, size)
    return inside, 1 - (bottom - top) * (right - left) / size**2
