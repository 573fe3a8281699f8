"""Which regions of two views show the same place: a plan, as `regions` has them, from where the views were cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.objectives.regions import subsample
from vitling.views.renderer import Views


class RegionLines(NamedTuple):
    """Some views of one size."""

    places: Tensor  # [V B, 4], see `Views.boxes`
    rows: Tensor  # where the regions that take part lie in a view, from 0 to 1
    columns: Tensor


def locate_regions(backbone: Backbone, views: Sequence[Views], wide: int, stride: int = 1) -> list[RegionLines]:
    """The first `wide` of the views are the global ones, of one size."""
    missing = [i for i, view in enumerate(views) if view.boxes is None]
    if missing:
        raise ValueError(f"views {missing} come without their places: the plan's groups must be `located`")
    places = [cast(Tensor, view.boxes) for view in views]
    joined = [torch.cat(places[:wide]), *places[wide:]]
    return [
        RegionLines(some, *(_lines(backbone, side, stride, some.device) for side in view.pixels.shape[-2:]))
        for some, view in zip(joined, [views[0], *views[wide:]], strict=True)
    ]


def _lines(backbone: Backbone, side: int, stride: int, device: torch.device) -> Tensor:
    return subsample(backbone.token_centres(side, device)[:, None], stride).flatten()


@torch.no_grad()
def match_by_place(seen: Sequence[RegionLines], images: int) -> Tensor:
    """[B, S, R] from the student's views; the first ones are the global views, which the teacher sees too. A region
    belongs to the four regions of the teacher around its middle, by how near they are; if that lies outside of the
    other view, to none. Views count as much as they have of the other, and regions of a view alike; the shares of an
    image add up to 1, or to 0 if none of its views overlap.
    """
    wide, blocks = seen[0], []
    for some in seen:
        down = _along(_edges(some.places, 1, images), some.rows, _edges(wide.places, 1, images), wide.rows)
        across = _along(_edges(some.places, 0, images), some.columns, _edges(wide.places, 0, images), wide.columns)
        block = down[:, :, :, None, :, :, None] * across[:, :, None, :, :, None]  # [B, V, h, w, G, h', w']
        block = block.flatten(5, 6).flatten(2, 3)
        blocks.append(block / block.shape[2])
    itself = torch.eye(blocks[0].shape[1], dtype=torch.bool, device=blocks[0].device)[:, None, :, None]
    blocks[0] = blocks[0].masked_fill(itself, 0.0)
    plan = torch.cat([block.flatten(3, 4).flatten(1, 2) for block in blocks], dim=1)
    return plan / plan.sum((1, 2), keepdim=True).clamp(min=torch.finfo(plan.dtype).tiny)


Edges = tuple[Tensor, Tensor]  # start and extent of views along an axis of the image, [B, V] each


def _edges(places: Tensor, axis: int, images: int) -> Edges:
    """Axis 0 is across, 1 down."""
    by_image = places.unflatten(0, (-1, images)).transpose(0, 1)
    return by_image[..., axis], by_image[..., 2 + axis]


def _along(mine: Edges, lines: Tensor, theirs: Edges, keys: Tensor) -> Tensor:
    """[B, V, n, G, m]: of each of the student's n rows (or columns) the share of each of the teacher's m."""
    (start, extent), (first, length) = mine, theirs
    in_image = start[..., None] + extent[..., None] * lines
    at = (in_image[..., None] - first[:, None, None]) / length[:, None, None]
    return _between(at.clamp(keys[0], keys[-1]), keys) * ((at >= 0) & (at <= 1))[..., None]


def _between(at: Tensor, keys: Tensor) -> Tensor:
    """[.., m]: 1 at a key, 0 at its neighbours, straight between them."""
    apart, end = keys.diff(), keys.new_ones(1)
    off = at[..., None] - keys
    return (1 - torch.maximum(-off / torch.cat([end, apart]), off / torch.cat([apart, end]))).clamp(min=0)
