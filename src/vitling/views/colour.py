"""Batched colour operations: images [B, 3, H, W] in 0..255, and a number per image.

Blends (brightness, contrast, saturation, sharpness) are x' = f * x + (1 - f) * y, clipped; f = 1 changes nothing.
Grey images are accepted by every operation that is defined for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitling.views.draws import Draws
from vitling.views.masked import apply_masked, per_image

_GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue: ITU-R 601, as in PIL
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return values of shape [C, 1, 1], made on the device: a copy from the host would make it wait."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])


def grey(images: Tensor) -> Tensor:
    """Convert to [B, 1, H, W]."""
    if images.shape[1] == 1:
        return images
    return grey_planes(*images.unbind(1))[:, None]


def grey_planes(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    return _GREY[0] * red + _GREY[1] * green + _GREY[2] * blue


def to_grey(images: Tensor, mask: Tensor) -> Tensor:
    return torch.where(per_image(mask), grey(images).expand_as(images), images)


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    other, factor = other.to(images.dtype).expand_as(images), per_image(factor).to(images.dtype)
    return torch.lerp(other, images, factor).clamp(0, 255)


def mean_grey(images: Tensor) -> Tensor:
    """Compute the mean [B, 1, 1, 1], rounded as in PIL's contrast."""
    return grey(images).mean(dim=(1, 2, 3), keepdim=True).round()


def smooth(images: Tensor) -> Tensor:
    """Apply PIL's SMOOTH filter (the centre weighs 5 of 13); the border stays unchanged."""
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = (around + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return torch.cat(
        [images[:, :, :1], torch.cat([images[:, :, 1:-1, :1], inner, images[:, :, 1:-1, -1:]], 3), images[:, :, -1:]], 2
    )


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue circle of HSV by `turns` in -0.5..0.5."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    return torch.stack(shift_hue_planes(red, green, blue, turns), dim=1)


def shift_hue_planes(red: Tensor, green: Tensor, blue: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate the hue of the three planes [B, H, W]."""
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    inverse = 1 / torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(
        high == red,
        (green - blue) * inverse,
        torch.where(high == green, 2 + (blue - red) * inverse, 4 + (red - green) * inverse),
    )
    hue = hue + 6 * turns[:, None, None]

    def channel(offset: float) -> Tensor:
        """Give the channel the part of the chroma that its distance on the hue circle leaves."""
        angle = hue + offset
        distance = (angle - 6 * (angle * (1 / 6)).floor() - 3).abs()
        return low + chroma * (distance - 1).clamp(0, 1)

    return channel(0), channel(4), channel(2)


def draw_jitter(
    draws: Draws, strengths: tuple[float, float, float, float], probability: float
) -> tuple[Tensor, Tensor]:
    """Draw torchvision's ColorJitter per image: the factors [B, 4] and the order [B, 4] of the four operations.

    order[:, 0] is the operation that comes first.
    """
    u = draws.uniform("jitter", 5)
    apply = u[:, 0] < probability
    factors = []
    for k, strength in enumerate(strengths):
        low, high = (-strength, strength) if k == HUE else (max(0.0, 1 - strength), 1 + strength)
        drawn = low + (high - low) * u[:, 1 + k]
        factors.append(torch.where(apply, drawn, 0.0 if k == HUE else 1.0))
    return torch.stack(factors, dim=1), draws.uniform("jitter-order", 4).argsort(dim=1)


def jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Apply jitter one position at a time, each image with its own operation; GPUs use `planes.jitter`."""
    images = images.clone()
    for position in range(4):
        which = order[:, position]
        factor = factors.gather(1, which[:, None])[:, 0]
        images = apply_masked(images, (which == HUE) & (factor != 0), shift_hue, factor, in_place=True)
        images = apply_masked(images, (which != HUE) & (factor != 1), _blend_by, which, factor, in_place=True)
    return images


def _blend_by(images: Tensor, which: Tensor, factor: Tensor) -> Tensor:
    other = torch.where(per_image(which == CONTRAST), mean_grey(images), grey(images))
    return blend(images, torch.where(per_image(which == BRIGHTNESS), 0.0, other), factor)


def solarise(images: Tensor, mask: Tensor, threshold: float = 128.0) -> Tensor:
    return torch.where(per_image(mask) & (images >= threshold), 255 - images, images)
