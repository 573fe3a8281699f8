"""Crops. A box is (left, top, width, height) as fractions of the image, so it fits the squashed store as it is.

A crop with its resize is two small matrices for each image, one along each axis: out = Y @ image @ Xᵀ. Their rows are
the filter's weights as PIL computes them for `resize(box=...)`, antialiasing included; a flip turns X round.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitling.views.chosen import whole_batches
from vitling.views.config import Filter
from vitling.views.draws import Draws

_BAND = 32
_ATTEMPTS = 10  # as torchvision's RandomResizedCrop, then the largest centred box of an allowed ratio


def random_boxes(draws: Draws, aspect: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """[B, 4] boxes with torchvision's distribution, for images of `aspect` = width / height."""
    u = draws.uniform("crop", 2 * _ATTEMPTS + 2)
    area = aspect[:, None] * (scale[0] + (scale[1] - scale[0]) * u[:, :_ATTEMPTS])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    shape = torch.exp(low + (high - low) * u[:, _ATTEMPTS : 2 * _ATTEMPTS])
    width, height = torch.sqrt(area * shape) / aspect[:, None], torch.sqrt(area / shape)
    fits = (width <= 1) & (height <= 1)
    first = fits.to(torch.int8).argmax(dim=1, keepdim=True)  # argmax gives the first of equals
    found = fits.any(dim=1, keepdim=True)
    fallback = torch.stack([(ratio[1] / aspect).clamp(max=1), (aspect / ratio[0]).clamp(max=1)], dim=1)
    drawn = torch.cat([width.gather(1, first), height.gather(1, first)], dim=1)
    sides = torch.where(found, drawn, fallback)
    corner = torch.where(found, u[:, 2 * _ATTEMPTS :], 0.5) * (1 - sides)
    return torch.cat([corner, sides], dim=1)


def centre_boxes(aspect: Tensor, fraction: float) -> Tensor:
    """The square in the middle whose side is `fraction` of the shorter side."""
    width, height = fraction / aspect.clamp(min=1), fraction * aspect.clamp(max=1)
    return torch.stack([(1 - width) / 2, (1 - height) / 2, width, height], dim=1)


def crop(pixels: Tensor, boxes: Tensor, size: int, filter: Filter, flip: Tensor | None = None) -> Tensor:
    """uint8 [B, C, S, S] -> float [V * B, C, size, size] in 0..255 for V * B boxes, view by view: V crops an image.

    float16 on GPUs, where it is exact enough. In memory the channels of a line lie side by side, which is how matrix
    products want them.
    """
    batch, channels, height, width = pixels.shape
    views = len(boxes) // batch
    on_cpu = not whole_batches(pixels)
    dtype = torch.float16 if pixels.is_cuda else torch.float32
    boxes = _image_by_image(boxes, views)
    flip = None if flip is None else _image_by_image(flip, views)
    x = _weights(boxes[:, 0], boxes[:, 2], width, size, filter, sparse=on_cpu, turned=flip).to(dtype)
    y = _weights(boxes[:, 1], boxes[:, 3], height, size, filter, sparse=on_cpu).to(dtype)
    lines = pixels.transpose(1, 2).to(dtype, memory_format=torch.contiguous_format)
    cut = (_cut_in_bands if on_cpu else _cut_whole)(lines, y, x)
    by_view = cut.view(batch, views, size, channels, size).transpose(0, 1).flatten(0, 1)
    return by_view.clamp(0, 255).transpose(1, 2)


def _cut_whole(lines: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """`lines` [B, S, C, S], `y` and `x` [B * V, size, S] -> [B * V, size, C, size]. The crops of an image are cut in
    one product, with its channels side by side: (rows of all crops x S) @ (S x channels * S)."""
    batch, height, channels, width = lines.shape
    size = y.shape[1]
    rows = torch.bmm(y.view(batch, -1, height), lines.view(batch, height, -1))
    return torch.bmm(rows.view(len(y), size * channels, width), x.mT).view(len(y), size, channels, size)


def _cut_in_bands(lines: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """The same for CPUs. The weights of some neighbouring output pixels are zero outside a band of the source, and
    nothing outside it is multiplied."""
    channels, width = lines.shape[2:]
    size = y.shape[1]
    out = lines.new_empty(len(y), size, channels * size)
    rows, columns = _bands(y), _bands(x)
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


def _bands(weights: Tensor) -> list[list[tuple[slice, int, int]]]:
    """For each image: some output pixels, and the first and last source pixel that they use."""
    parts = range(0, weights.shape[1], _BAND)
    used = torch.stack([weights[:, p : p + _BAND].any(dim=1) for p in parts], dim=1).int()
    first, last = used.argmax(dim=2), used.shape[2] - used.flip(2).argmax(dim=2)
    slices = [slice(p, p + _BAND) for p in parts]
    return [list(zip(slices, *edges)) for edges in zip(first.tolist(), last.tolist())]


def _image_by_image(x: Tensor, views: int) -> Tensor:
    """[V * B, ...] -> [B * V, ...]."""
    return x.unflatten(0, (views, -1)).transpose(0, 1).flatten(0, 1)


def _weights(
    start: Tensor,
    extent: Tensor,
    source: int,
    target: int,
    filter: Filter,
    sparse: bool,
    turned: Tensor | None = None,
) -> Tensor:
    """[B, target, source]: row o holds what each source pixel gives to output pixel o, or to the mirrored one.

    Few of a row are not zero, and their sum is taken over those. `sparse` puts them in their places; else the whole row
    is computed, which is one kernel on a GPU.
    """
    reach = 1 if filter == "bilinear" else 2
    scale = (extent * source / target)[:, None]
    out = (torch.arange(target, device=start.device) + 0.5)[None]
    if turned is not None:
        out = torch.where(turned[:, None], target - out, out)
    centre = (start * source)[:, None] + out * scale
    widening = scale.clamp(min=1)
    narrowing = (1 / widening)[:, :, None]

    def at(pixels: Tensor) -> Tensor:
        distance = (pixels + 0.5 - centre[:, :, None]) * narrowing
        return _triangle(distance) if filter == "bilinear" else _cubic(distance)

    taps = min(source, math.ceil(2 * reach * max(source / target, 1)) + 1)
    first = (centre - reach * widening).floor().clamp(0, source - taps)
    index = first[:, :, None] + torch.arange(taps, device=start.device)
    few = at(index)
    share = 1 / few.sum(dim=2, keepdim=True)
    if not sparse:
        return at(torch.arange(source, device=start.device)[None, None]) * share
    return torch.zeros(len(start), target, source, device=start.device).scatter_(2, index.long(), few * share)


def _triangle(t: Tensor) -> Tensor:
    return (1 - t.abs()).clamp(min=0)


def _cubic(t: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5, PIL's choice."""
    t = t.abs()
    near = (1.5 * t - 2.5) * t * t + 1
    far = ((-0.5 * t + 2.5) * t - 4) * t + 2
    return torch.where(t < 1, near, torch.where(t < 2, far, 0.0))
