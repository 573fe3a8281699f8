"""Mixup and CutMix of a view with a partner's view."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitling.views.config import Mix
from vitling.views.draws import Draws, beta_quantiles
from vitling.views.erasing import rectangle


class Recipe(NamedTuple):
    """How each image is mixed, [B] each: at all, by CutMix, how much of it stays, and the edges of the box."""

    mixed: Tensor
    cut: Tensor
    lam: Tensor
    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor


def draw_mix(draws: Draws, quantiles: tuple[Tensor, Tensor], *, mix: Mix, size: int) -> Recipe:
    """`quantiles` are those of CutMix and of mixup. The lam of CutMix is what the clipped box really leaves."""
    u = draws.uniform("mix", 4)
    mixed = u[:, 0] < mix.prob
    cut = u[:, 1] < (mix.switch if mix.mixup > 0 and mix.cutmix > 0 else float(mix.cutmix > 0))
    lam = torch.where(cut, draws.beta("cutmix", quantiles[0]), draws.beta("mixup", quantiles[1]))
    if mix.fold:
        lam = torch.maximum(lam, 1 - lam)
    top, bottom, left, right = _box(lam, u[:, 2], u[:, 3], size)
    kept = 1 - (bottom - top) * (right - left) / size**2
    return Recipe(mixed, cut, torch.where(mixed, torch.where(cut, kept, lam), 1.0), top, bottom, left, right)


def quantiles_of(mix: Mix, device: torch.device) -> tuple[Tensor, Tensor]:
    return beta_quantiles(mix.cutmix or 1.0, device), beta_quantiles(mix.mixup or 1.0, device)


def mix_images(own: Tensor, partner: Tensor, recipe: Recipe) -> Tensor:
    """`own` and `partner` are both unmixed, so no pixel is read that was already overwritten."""
    height, width = recipe.bottom - recipe.top, recipe.right - recipe.left
    inside = rectangle(recipe.top, recipe.left, height, width, own.shape[-1])[:, None]
    blend = torch.lerp(partner.float(), own.float(), _wide(recipe.lam))
    images = torch.where(_wide(recipe.cut), torch.where(inside, partner, own), blend)
    return torch.where(_wide(recipe.mixed), images, own)


def _box(lam: Tensor, across: Tensor, down: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, bottom, left and right of a box of area 1 - lam round a random centre, clipped at the border."""
    half = (size * torch.sqrt(1 - lam)).floor() / 2
    middle, centre = (down * size).floor(), (across * size).floor()
    edges = (middle - half, middle + half, centre - half, centre + half)
    top, bottom, left, right = (edge.floor().clamp(0, size) for edge in edges)
    return top, bottom, left, right


def _wide(x: Tensor) -> Tensor:
    return x[:, None, None, None]
