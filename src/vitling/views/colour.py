"""Colour, batched: images [B, 3, H, W] in 0..255, and a number per image. One channel passes where that has a meaning.

Blends (brightness, contrast, saturation, sharpness) are x' = f * x + (1 - f) * y, clipped; f = 1 changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views.chosen import apply_to
from vitling.views.draws import Draws

_GREY = (0.299, 0.587, 0.114)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[C, 1, 1], made on the device: a copy from the host would make it wait."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])


def grey(images: Tensor) -> Tensor:
    """[B, 1, H, W], ITU-R 601 as PIL has it."""
    if images.shape[1] == 1:
        return images
    return grey_of(*images.unbind(1))[:, None]


def grey_of(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    return _GREY[0] * red + _GREY[1] * green + _GREY[2] * blue


def to_grey(images: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(_wide(chosen), grey(images).expand_as(images), images)


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other.to(images.dtype).expand_as(images), images, _wide(factor).to(images.dtype)).clamp(0, 255)


def mean_grey(images: Tensor) -> Tensor:
    """[B, 1, 1, 1], a whole number as PIL's contrast has it."""
    return grey(images).mean(dim=(1, 2, 3), keepdim=True).round()


def smooth(images: Tensor) -> Tensor:
    """PIL's SMOOTH (the middle weighs 5 of 13); the border stays as it is."""
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = (around + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return torch.cat(
        [images[:, :, :1], torch.cat([images[:, :, 1:-1, :1], inner, images[:, :, 1:-1, -1:]], 3), images[:, :, -1:]], 2
    )


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turns the hue circle of HSV; `turns` in -0.5..0.5."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    return torch.stack(turn_hue(red, green, blue, turns), dim=1)


def turn_hue(red: Tensor, green: Tensor, blue: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the three planes [B, H, W]."""
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    share = 1 / torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(
        high == red,
        (green - blue) * share,
        torch.where(high == green, 2 + (blue - red) * share, 4 + (red - green) * share),
    )
    hue = hue + 6 * turns[:, None, None]

    def channel(offset: float) -> Tensor:
        """The distance round the circle says how much of the chroma a channel has."""
        place = hue + offset
        distance = (place - 6 * (place * (1 / 6)).floor() - 3).abs()
        return low + chroma * (distance - 1).clamp(0, 1)

    return channel(0), channel(4), channel(2)


def draw_jitter(
    draws: Draws, strengths: tuple[float, float, float, float], probability: float
) -> tuple[Tensor, Tensor]:
    """torchvision's ColorJitter with a draw per image: the factors [B, 4], and the order [B, 4] of the four operations
    (which comes first, second, ...)."""
    u = draws.uniform("jitter", 5)
    apply = u[:, 0] < probability
    factors = []
    for k, strength in enumerate(strengths):
        low, high = (-strength, strength) if k == HUE else (max(0.0, 1 - strength), 1 + strength)
        drawn = low + (high - low) * u[:, 1 + k]
        factors.append(torch.where(apply, drawn, 0.0 if k == HUE else 1.0))
    return torch.stack(factors, dim=1), draws.uniform("jitter-order", 4).argsort(dim=1)


def jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Operation by operation, each for the images whose turn it is; see `planes.jitter` for the GPU's way."""
    images = images.clone()
    for place in range(4):
        which = order[:, place]
        factor = factors.gather(1, which[:, None])[:, 0]
        images = apply_to(images, (which == HUE) & (factor != 0), shift_hue, factor, owned=True)
        images = apply_to(images, (which != HUE) & (factor != 1), _blend_by, which, factor, owned=True)
    return images


def _blend_by(images: Tensor, which: Tensor, factor: Tensor) -> Tensor:
    other = torch.where(_wide(which == CONTRAST), mean_grey(images), grey(images))
    return blend(images, torch.where(_wide(which == BRIGHTNESS), 0.0, other), factor)


def solarise(images: Tensor, chosen: Tensor, threshold: float = 128.0) -> Tensor:
    return torch.where(_wide(chosen) & (images >= threshold), 255 - images, images)


def _wide(x: Tensor) -> Tensor:
    """[B] -> [B, 1, 1, 1]."""
    return x[:, None, None, None]
