"""Matching regions for the report: two training views of a few images, and how similar their regions are."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitling.evaluation.correspondence import compare_regions
from vitling.evaluation.model import Model
from vitling.objectives.places import locate_regions, match_by_place
from vitling.objectives.regions import subsample
from vitling.report.data import MatchedViews
from vitling.report.sprites import encode_picture
from vitling.runs.report_files import RunFiles
from vitling.runs.report_images import RunImages
from vitling.runs.report_pictures import SMALLEST_GRID
from vitling.views.batch import render_batch
from vitling.views.plan import Mix, Plan
from vitling.views.renderer import Normaliser, Views
from vitling.views.sheet import to_rgb

LARGEST_GRID = 16  # regions per side; of larger maps, only every second (third, ...) region is compared
PICTURE_SIDE = 256  # px


@torch.inference_mode()
def match_views(images: RunImages, chosen: list[int]) -> tuple[MatchedViews, ...]:
    """Compare the regions of two views of each chosen image; empty if the network's last map is too small.

    The same seed and image always give the same pair.
    """
    model, n = images.model, len(chosen)
    rows, columns = model.backbone.grid_size((model.meta.size, model.meta.size))
    stride = -(-max(rows, columns) // LARGEST_GRID)
    if not chosen or min(rows, columns) < SMALLEST_GRID:
        return ()
    first, second = _render_pairs(images, np.array(chosen))
    grids = subsample(model.backbone(torch.cat([first.pixels, second.pixels])).grid, stride)
    similar = compare_regions(grids[:n], grids[n:])
    nearest = similar.argmax(dim=2)
    places = _find_places(model, first, second, stride)
    shifts = _compute_shifts(first, second)
    most = images.limits.matches // similar[0].numel()
    return tuple(
        MatchedViews(
            name=images.shown.dataset.keys[image],
            pictures=(_draw(first.pixels[i], model), _draw(second.pixels[i], model)),
            grid=(grids.shape[-2], grids.shape[-1]),
            similarities=base64.b64encode((100 * similar[i]).round().to(torch.int8).cpu().numpy().tobytes()).decode(),
            nearest=tuple(nearest[i].tolist()),
            same_place=() if places is None else _check_matches(places[i], nearest[i]),
            by_chance=0.0 if places is None else round(float(places[i].float().mean(dim=1).sum()), 1),
            shift=shifts[i],
        )
        for i, image in enumerate(chosen[:most])
    )


def _render_pairs(images: RunImages, chosen: np.ndarray) -> list[Views]:
    """Render two views of each image as in training, at the size of the saved model and without mixing."""
    store, meta, stage = images.shown, images.model.meta, _choose_stage(images.files, images.model.meta.size)
    plan, normalise = _make_pair(stage, meta.size), Normaliser(tuple(meta.mean), tuple(meta.std))
    return render_batch(plan, store, chosen, normalise, stage.resolved.config.seed)


def _choose_stage(files: RunFiles, size: int) -> RunFiles:
    """Choose the last stage whose views show exactly their crop boxes, so that places are known; else the last."""
    stages = [stage for _, stage in reversed(files.stages)]
    return next((stage for stage in stages if _make_pair(stage, size).groups[0].return_boxes), stages[0])


def _make_pair(stage: RunFiles, size: int) -> Plan:
    """Return the first two views of a stage, or twice the first if there is only one."""
    groups = [group for group in stage.resolved.config.make_views(size).groups for _ in range(group.count)]
    pair = (groups * 2)[:2]
    known = all(group.policy.keeps_boxes for group in pair)
    return Plan(tuple(replace(group, size=size, count=1, mix=Mix(), return_boxes=known) for group in pair))


def _find_places(model: Model, first: Views, second: Views, stride: int) -> Tensor | None:
    """Find the regions of the second view that show the place of each of the first: [B, T, T'], up to four of each.

    They are those that `measure_matching` counts as right. None: places are unknown.
    """
    if first.boxes is None:
        return None
    images = len(first.pixels)
    both = match_by_place(locate_regions(model.backbone, (first, second), 2, stride), images) > 0
    regions = both.shape[1] // 2
    return both[:, :regions, regions:]


def _check_matches(around: Tensor, nearest: Tensor) -> tuple[bool | None, ...]:
    """Return whether each nearest region [T] is one of those around the place, [T, T']; None if there are none."""
    right = around.gather(1, nearest[:, None])[:, 0]
    return tuple(bool(hit) if seen else None for hit, seen in zip(right.tolist(), around.any(dim=1).tolist()))


def _compute_shifts(first: Views, second: Views) -> list[tuple[float, ...]]:
    if first.boxes is None or second.boxes is None:
        return [()] * len(first.pixels)
    offset = (first.boxes[:, :2] - second.boxes[:, :2]) / second.boxes[:, 2:]
    scale = first.boxes[:, 2:] / second.boxes[:, 2:]
    both = torch.stack([offset, scale], dim=2).flatten(1).double()
    return [tuple(round(number, 4) for number in row) for row in both.tolist()]


def _draw(view: Tensor, model: Model) -> str:
    picture = to_rgb(view, model.meta.mean, model.meta.std)
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    return encode_picture(picture)
