"""Mixup and CutMix of a view with a partner's view."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vitling.views.draws import Draws, beta_quantiles
from vitling.views.erasing import rectangle
from vitling.views.masked import per_image
from vitling.views.plan import Mix


class MixNumbers(NamedTuple):
    """How each image is mixed, [B] each: whether at all, whether by CutMix, its own weight, the edges of the box."""

    mixed: Tensor
    cut: Tensor
    lam: Tensor
    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor


def draw_mix(draws: Draws, quantiles: tuple[Tensor, Tensor], *, mix: Mix, size: int) -> MixNumbers:
    """Draw how to mix, with `mix_quantiles`. For CutMix, lam is the fraction that the clipped box really leaves."""
    u = draws.uniform("mix", 4)
    mixed = u[:, 0] < mix.prob
    cut = u[:, 1] < (0.5 if mix.mixup > 0 and mix.cutmix > 0 else float(mix.cutmix > 0))
    lam = torch.where(cut, draws.beta("cutmix", quantiles[0]), draws.beta("mixup", quantiles[1]))
    if mix.fold:
        lam = torch.maximum(lam, 1 - lam)
    top, bottom, left, right = _make_box(lam, u[:, 2], u[:, 3], size)
    kept = 1 - (bottom - top) * (right - left) / size**2
    return MixNumbers(mixed, cut, torch.where(mixed, torch.where(cut, kept, lam), 1.0), top, bottom, left, right)


def mix_quantiles(mix: Mix, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tabulate the Beta quantiles of CutMix and of mixup."""
    return beta_quantiles(mix.cutmix or 1.0, device), beta_quantiles(mix.mixup or 1.0, device)


def mix_images(own: Tensor, partner: Tensor, numbers: MixNumbers) -> Tensor:
    """Mix `own` with `partner`; both are unmixed, so no pixel is read that was already overwritten."""
    height, width = numbers.bottom - numbers.top, numbers.right - numbers.left
    inside = rectangle(numbers.top, numbers.left, height, width, own.shape[-1])[:, None]
    blend = torch.lerp(partner.float(), own.float(), per_image(numbers.lam))
    images = torch.where(per_image(numbers.cut), torch.where(inside, partner, own), blend)
    return torch.where(per_image(numbers.mixed), images, own)


def _make_box(lam: Tensor, across: Tensor, down: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute top, bottom, left and right of a box of area 1 - lam around a random centre, clipped at the border."""
    half = (size * torch.sqrt(1 - lam)).floor() / 2
    row, column = (down * size).floor(), (across * size).floor()
    edges = (row - half, row + half, column - half, column + half)
    top, bottom, left, right = (edge.floor().clamp(0, size) for edge in edges)
    return top, bottom, left, right
