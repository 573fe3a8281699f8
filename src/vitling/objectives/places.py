"""Matching of regions that show the same place of an image, from the boxes that views were cropped from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.objectives.regions import subsample
from vitling.views.renderer import Views


class RegionLines(NamedTuple):
    """Views of one size, and the centres of the regions in them."""

    boxes: Tensor  # [V B, 4], see `Views.boxes`
    rows: Tensor  # from 0 to 1 within a view
    columns: Tensor


def locate_regions(backbone: Backbone, views: Sequence[Views], wide: int, stride: int = 1) -> list[RegionLines]:
    """Locate the regions of all views, of which the first `wide` are the global ones, of one size."""
    missing = [i for i, view in enumerate(views) if view.boxes is None]
    if missing:
        raise ValueError(f"views {missing} have no boxes: set return_boxes in their groups")
    boxes = [cast(Tensor, view.boxes) for view in views]
    by_size = [torch.cat(boxes[:wide]), *boxes[wide:]]
    return [
        RegionLines(some, *(_region_centres(backbone, side, stride, some.device) for side in view.pixels.shape[-2:]))
        for some, view in zip(by_size, [views[0], *views[wide:]], strict=True)
    ]


def _region_centres(backbone: Backbone, side: int, stride: int, device: torch.device) -> Tensor:
    return subsample(backbone.token_centres(side, device)[:, None], stride).flatten()


@torch.no_grad()
def match_by_place(views: Sequence[RegionLines], images: int) -> Tensor:
    """Match the student's regions with the teacher's: [B, S, R]. The first views are the global ones, which both see.

    A region is matched with the four regions around its centre in the other view, weighted bilinearly, or with none if
    its centre lies outside. A pair of views counts by the part that matches, and regions of a view count equally. An
    image's shares sum to 1, or to 0 if none of its views overlap.
    """
    teacher, blocks = views[0], []
    across_teacher, down_teacher = (_edges(teacher.boxes, axis, images) for axis in (0, 1))
    for student in views:
        down = _match_lines(_edges(student.boxes, 1, images), student.rows, down_teacher, teacher.rows)
        across = _match_lines(_edges(student.boxes, 0, images), student.columns, across_teacher, teacher.columns)
        block = down[:, :, :, None, :, :, None] * across[:, :, None, :, :, None]  # [B, V, h, w, G, h', w']
        block = block.flatten(5, 6).flatten(2, 3)
        blocks.append(block / block.shape[2])
    same_view = torch.eye(blocks[0].shape[1], dtype=torch.bool, device=blocks[0].device)[:, None, :, None]
    blocks[0] = blocks[0].masked_fill(same_view, 0.0)
    matching = torch.cat([block.flatten(3, 4).flatten(1, 2) for block in blocks], dim=1)
    return matching / matching.sum((1, 2), keepdim=True).clamp(min=torch.finfo(matching.dtype).tiny)


Edges = tuple[Tensor, Tensor]  # start and extent of views along an axis of the image, [B, V] each


def _edges(boxes: Tensor, axis: int, images: int) -> Edges:
    """Return the edges along axis 0 (across) or 1 (down)."""
    by_image = boxes.unflatten(0, (-1, images)).transpose(0, 1)
    return by_image[..., axis], by_image[..., 2 + axis]


def _match_lines(mine: Edges, lines: Tensor, theirs: Edges, keys: Tensor) -> Tensor:
    """Return the weights [B, V, n, G, m] of the teacher's m rows (or columns) for each of the student's n."""
    (start, extent), (first, length) = mine, theirs
    in_image = start[..., None] + extent[..., None] * lines
    at = (in_image[..., None] - first[:, None, None]) / length[:, None, None]
    return _interpolation_weights(at.clamp(keys[0], keys[-1]), keys) * ((at >= 0) & (at <= 1))[..., None]


def _interpolation_weights(at: Tensor, keys: Tensor) -> Tensor:
    """Return linear interpolation weights [.., m]: 1 at a key and 0 at its neighbours."""
    apart, end = keys.diff(), keys.new_ones(1)
    off = at[..., None] - keys
    return (1 - torch.maximum(-off / torch.cat([end, apart]), off / torch.cat([apart, end]))).clamp(min=0)
