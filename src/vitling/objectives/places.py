"""Which regions of two views show the same place: a plan, as `regions` has them, from where the views were cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from vitling.backbones.position import Grid
from vitling.objectives.regions import sampled
from vitling.views.easel import Views

Located = tuple[Tensor, Grid]  # places [V B, 4] of views (`Views.places`), and the regions of each, down and across


def located(views: Sequence[Views], grids: Sequence[Tensor], wide: int) -> list[Located]:
    """Views whose maps [V B, D, h, w] are `grids`: the first `wide` of them are the global ones, with one map."""
    missing = [i for i, view in enumerate(views) if view.places is None]
    if missing:
        raise ValueError(f"views {missing} come without their places: the plan's groups must be `located`")
    places = [cast(Tensor, view.places) for view in views]
    joined = [torch.cat(places[:wide]), *places[wide:]]
    return [(some, (grid.shape[-2], grid.shape[-1])) for some, grid in zip(joined, grids, strict=True)]


@torch.no_grad()
def plan_by_place(seen: Sequence[Located], images: int, stride: int = 1) -> Tensor:
    """[B, S, R] from the student's views; the first ones are the global views, which the teacher sees too. A region
    belongs to the four regions of the teacher around its middle, by how near they are; if that lies outside of the
    other view, to none. Views count as much as they have of the other, and regions of a view alike; the shares of an
    image add up to 1, or to 0 if none of its views overlap.
    """
    wide, blocks = seen[0], []
    for some in seen:
        down, across = (_along(axis, some, wide, images, stride) for axis in (0, 1))
        block = down[:, :, :, None, :, :, None] * across[:, :, None, :, :, None]  # [B, V, h, w, G, h', w']
        block = block.flatten(5, 6).flatten(2, 3)
        blocks.append(block / block.shape[2])
    itself = torch.eye(blocks[0].shape[1], dtype=torch.bool, device=blocks[0].device)[:, None, :, None]
    blocks[0] = blocks[0].masked_fill(itself, 0.0)
    plan = torch.cat([block.flatten(3, 4).flatten(1, 2) for block in blocks], dim=1)
    return plan / plan.sum((1, 2), keepdim=True).clamp(min=torch.finfo(plan.dtype).tiny)


def _along(axis: int, mine: Located, theirs: Located, images: int, stride: int) -> Tensor:
    """[B, V, n, G, m]: the share of each of the teacher's rows (axis 0) or columns (1) in each of the student's."""
    lines, keys = (_middles(grid[axis], stride, places.device) for places, grid in (mine, theirs))
    start, extent = _edges(axis, mine[0], images)
    first, length = (edge[:, None, None] for edge in _edges(axis, theirs[0], images))
    at = ((start[..., None] + extent[..., None] * lines)[..., None] - first) / length
    apart = keys[1] - keys[0] if len(keys) > 1 else 1.0
    near = at.clamp(keys[0], keys[-1])[..., None]
    return (1 - (near - keys).abs() / apart).clamp(min=0) * ((at >= 0) & (at <= 1))[..., None]


def _middles(side: int, stride: int, device: torch.device) -> Tensor:
    """Where the rows of regions that take part lie in a view, from 0 to 1."""
    middles = (torch.arange(side, device=device) + 0.5) / side
    return sampled(middles[:, None], stride).flatten()


def _edges(axis: int, places: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Start and extent, [B, V] each."""
    by_image = places.unflatten(0, (-1, images)).transpose(0, 1)
    return by_image[..., 1 - axis], by_image[..., 3 - axis]
