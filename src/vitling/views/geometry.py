"""Crops. A box is (left, top, width, height) in fractions of the image, so it applies to the squashed store unchanged.

A crop and its resize are two small matrices per image, one along each axis: out = Y @ image @ Xᵀ. Their rows are the
filter's weights as PIL computes them for `resize(box=...)`, with antialiasing; a flip reverses the rows of X.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from vitling.views.draws import Draws
from vitling.views.masked import works_on_whole_batch
from vitling.views.plan import Filter, Rescale

_BAND = 32  # output pixels that share a band of the source on CPUs
_ATTEMPTS = 10  # as in torchvision's RandomResizedCrop, before it takes the largest centred box


def random_boxes(draws: Draws, aspect: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Draw boxes [B, 4] with torchvision's distribution for images of `aspect` = width / height."""
    u = draws.uniform("crop", 2 * _ATTEMPTS + 2)
    area = aspect[:, None] * (scale[0] + (scale[1] - scale[0]) * u[:, :_ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    log_uniform = torch.exp(low + (high - low) * u[:, _ATTEMPTS : 2 * _ATTEMPTS])
    width, height = torch.sqrt(area * log_uniform) / aspect[:, None], torch.sqrt(area / log_uniform)
    fits = (width <= 1) & (height <= 1)
    first = fits.to(torch.int8).argmax(dim=1, keepdim=True)  # argmax gives the first of equals
    found = fits.any(dim=1, keepdim=True)
    fallback = torch.stack([(ratio[1] / aspect).clamp(max=1), (aspect / ratio[0]).clamp(max=1)], dim=1)
    drawn = torch.cat([width.gather(1, first), height.gather(1, first)], dim=1)
    sides = torch.where(found, drawn, fallback)
    corner = torch.where(found, u[:, 2 * _ATTEMPTS :], 0.5) * (1 - sides)
    return torch.cat([corner, sides], dim=1)


def centre_boxes(aspect: Tensor, fraction: float) -> Tensor:
    """Make boxes of the central square whose side is `fraction` of the shorter side."""
    width, height = fraction / aspect.clamp(min=1), fraction * aspect.clamp(max=1)
    return torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)


def rescale_boxes(draws: Draws, aspect: Tensor, rescale: Rescale, canvas: int) -> Tensor:
    """Draw boxes [B, 4] that show images of random size on a canvas; they reach outside of smaller images."""
    u = draws.uniform("rescale", 4)
    low, high = rescale.shorter
    shorter = (low + (high - low) * u[:, 0]).clamp(max=rescale.longest / torch.maximum(aspect, 1 / aspect))
    low, high = rescale.factor
    shorter = shorter * (low + (high - low) * u[:, 1])
    image = shorter[:, None] * torch.stack([aspect.clamp(min=1), (1 / aspect).clamp(min=1)], dim=1)  # width, height
    sides = canvas / image
    corner = u[:, 2:] * (1 - sides).clamp(min=0) if rescale.random_crop else torch.zeros_like(sides)
    return torch.cat([corner, sides], dim=1)


def find_inside(boxes: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Return bool [B, 1, size, size]: whether a pixel of the view lies within the image."""
    centres = (torch.arange(size, device=boxes.device) + 0.5) / size
    along = boxes[:, :2, None] + boxes[:, 2:, None] * centres  # x and y, [B, 2, size]
    x, y = ((along >= 0) & (along <= 1)).unbind(1)
    if flip is not None:
        x = torch.where(flip[:, None], x.flip(1), x)
    return (y[:, :, None] & x[:, None, :])[:, None]


def crop(
    pixels: Tensor, boxes: Tensor, size: int, filter: Filter, flip: Tensor | None = None, outside: bool = False
) -> Tensor:
    """Crop uint8 [B, C, S, S] to float [V * B, C, size, size] in 0..255, for V boxes per image, view by view.

    With `outside`, boxes may reach outside of the image, whose border is replicated there. float16 is exact enough on
    GPUs. In memory the channels of a line lie side by side, for the matrix products.
    """
    batch, channels, height, width = pixels.shape
    views = len(boxes) // batch
    on_cpu = not works_on_whole_batch(pixels)
    dtype = torch.float16 if pixels.is_cuda else torch.float32
    boxes = _to_image_major(boxes, views)
    flip = None if flip is None else _to_image_major(flip, views)
    how = partial(_make_weights, target=size, filter=filter, sparse=on_cpu, outside=outside)
    x = how(boxes[:, 0], boxes[:, 2], width, mirrored=flip).to(dtype)
    y = how(boxes[:, 1], boxes[:, 3], height).to(dtype)
    lines = pixels.transpose(1, 2).to(dtype, memory_format=torch.contiguous_format)
    cropped = (_crop_in_bands if on_cpu else _crop_whole)(lines, y, x)
    by_view = cropped.view(batch, views, size, channels, size).transpose(0, 1).flatten(0, 1)
    return by_view.clamp(0, 255).transpose(1, 2)


def _crop_whole(lines: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Crop `lines` [B, S, C, S] with `y` and `x` [B * V, size, S] to [B * V, size, C, size].

    All crops of an image are one product, with its channels side by side: (rows of all crops x S) @ (S x channels * S).
    """
    batch, height, channels, width = lines.shape
    size = y.shape[1]
    rows = torch.bmm(y.view(batch, -1, height), lines.view(batch, height, -1))
    return torch.bmm(rows.view(len(y), size * channels, width), x.mT).view(len(y), size, channels, size)


def _crop_in_bands(lines: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Do the same on CPUs, multiplying only the band of the source in which neighbouring output pixels have weights."""
    channels, width = lines.shape[2:]
    size = y.shape[1]
    out = lines.new_empty(len(y), size, channels * size)
    rows, columns = _find_bands(y), _find_bands(x)
    for k, (down, across) in enumerate(zip(rows, columns)):
        top, bottom = min(first for _, first, _ in down), max(last for _, _, last in down)
        source = lines[k * len(lines) // len(y), top:bottom].view(-1, width)
        cut = lines.new_empty(len(source), size)
        for some, first, last in across:
            torch.mm(source[:, first:last], x[k, some, first:last].mT, out=cut[:, some])
        cut = cut.view(bottom - top, channels * size)
        for some, first, last in down:
            torch.mm(y[k, some, first:last], cut[first - top : last - top], out=out[k, some])
    return out.view(len(y), size, channels, size)


def _find_bands(weights: Tensor) -> list[list[tuple[slice, int, int]]]:
    """Find for each image and slice of output pixels the first and last source pixel that they use."""
    starts = range(0, weights.shape[1], _BAND)
    used = torch.stack([weights[:, s : s + _BAND].any(dim=1) for s in starts], dim=1).int()
    first, last = used.argmax(dim=2), used.shape[2] - used.flip(2).argmax(dim=2)
    slices = [slice(s, s + _BAND) for s in starts]
    return [list(zip(slices, *edges)) for edges in zip(first.tolist(), last.tolist())]


def _to_image_major(x: Tensor, views: int) -> Tensor:
    """Reorder views [V * B, ...] to [B * V, ...]."""
    return x.unflatten(0, (views, -1)).transpose(0, 1).flatten(0, 1)


def _make_weights(
    start: Tensor,
    extent: Tensor,
    source: int,
    target: int,
    filter: Filter,
    sparse: bool,
    mirrored: Tensor | None = None,
    outside: bool = False,
) -> Tensor:
    """Return matrices [B, target, source]: row o holds each source pixel's weight in output pixel o, or its mirror.

    Few weights of a row are not zero, and they are normalised by the sum over those. `sparse` scatters them; otherwise
    whole rows are computed, which is one kernel on a GPU. Boxes that reach `outside` may use any number of pixels.
    """
    reach = 1 if filter == "bilinear" else 2
    scale = (extent * source / target)[:, None]
    out = (torch.arange(target, device=start.device) + 0.5)[None]
    if mirrored is not None:
        out = torch.where(mirrored[:, None], target - out, out)
    centre = (start * source)[:, None] + out * scale
    support = scale.clamp(min=1)
    inverse_support = (1 / support)[:, :, None]

    def weigh(pixels: Tensor) -> Tensor:
        distance = (pixels + 0.5 - centre[:, :, None]) * inverse_support
        return _triangle(distance) if filter == "bilinear" else _cubic(distance)

    if outside:
        centre = centre.clamp(0, source)
        weights = weigh(torch.arange(source, device=start.device)[None, None])
        return weights / weights.sum(dim=2, keepdim=True)
    taps = min(source, math.ceil(2 * reach * max(source / target, 1)) + 1)
    first = (centre - reach * support).floor().clamp(0, source - taps)
    index = first[:, :, None] + torch.arange(taps, device=start.device)
    weights = weigh(index)
    inverse_sum = 1 / weights.sum(dim=2, keepdim=True)
    if not sparse:
        return weigh(torch.arange(source, device=start.device)[None, None]) * inverse_sum
    return torch.zeros(len(start), target, source, device=start.device).scatter_(2, index.long(), weights * inverse_sum)


def _triangle(t: Tensor) -> Tensor:
    return (1 - t.abs()).clamp(min=0)


def _cubic(t: Tensor) -> Tensor:
    """Evaluate Keys' cubic kernel with a = -0.5, as in PIL."""
    t = t.abs()
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, near, torch.where(t < 2, far, 0.0))
