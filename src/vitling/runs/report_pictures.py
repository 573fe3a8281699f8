"""Pictures for the report: the attention of a few images, and the views that the network was trained on."""

from __future__ import annotations

import base64
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from vitling.backbones.attention import select_query_attention
from vitling.backbones.backbone import Backbone
from vitling.data.dataset import sample_evenly
from vitling.data.store import build_store
from vitling.errors import UserError
from vitling.evaluation.features import iterate_views
from vitling.report.data import AttentionImage, ImageMap, Picture
from vitling.report.sprites import encode_picture
from vitling.runs.report_files import RunFiles
from vitling.runs.report_images import RunImages, open_splits
from vitling.views.sheet import draw_views, to_rgb

SAMPLES = 6  # rows of the picture of views, and images whose attention and matching regions are shown
SMALLEST_GRID = 3  # patches per side; with fewer, attention shows nothing


def draw_attention(images: RunImages, chosen: list[int]) -> tuple[AttentionImage, ...]:
    """Compute what each patch of the chosen images attends to; empty if the network has no attention to show."""
    backbone, meta, store = images.model.backbone, images.model.meta, images.shown
    found: list[AttentionImage] = []
    left = images.limits.attention
    for i in chosen:
        (view,) = iterate_views(store, meta.size, meta.crop_fraction, np.array([i]))
        try:
            weights, grid = _read_attention(backbone, view)
        except UserError:
            return ()
        left -= weights.size
        if min(grid) < SMALLEST_GRID or left < 0:
            break
        picture = to_rgb(view[0], meta.mean, meta.std)
        found.append(
            AttentionImage(
                name=store.dataset.keys[i],
                picture=encode_picture(picture),
                grid=grid,
                keys=(weights.shape[2], weights.shape[3]),
                heads=weights.shape[0],
                weights=base64.b64encode(weights.tobytes()).decode(),
            )
        )
    return tuple(found)


@torch.inference_mode()
def _read_attention(backbone: Backbone, view: Tensor) -> tuple[np.ndarray, tuple[int, int]]:
    """Return uint8 [heads, patches, rows, columns], each map scaled to its maximum, and the grid of the patches."""
    features = backbone(view, attention=True)
    assert features.attention is not None
    rows, columns = features.grid.shape[-2:]
    maps = [
        select_query_attention(backbone.timm_model, features.attention, (rows, columns), (r, c))[0]
        for r in range(rows)
        for c in range(columns)
    ]
    stacked = torch.stack(maps, dim=1)
    scaled = 255 * stacked / stacked.amax(dim=(2, 3), keepdim=True).clamp(min=1e-12)
    return scaled.round().byte().cpu().numpy(), (rows, columns)


def draw_training_views(images: RunImages) -> tuple[Picture, ...]:
    """Draw random views of a few training images, for each stage."""
    found = []
    for title, stage in images.files.stages:
        with suppress(UserError, OSError):  # the images of another run, which this one started from, may be gone
            found.append(_draw_stage_views(title, stage, images))
    return tuple(found)


def _draw_stage_views(title: str, stage: RunFiles, images: RunImages) -> Picture:
    config = stage.resolved.config
    train = images.splits.train if stage is images.owner else open_splits(stage).train
    chosen = train.take(sample_evenly(len(train), SAMPLES))
    size = config.store_size or images.model.meta.store_size
    store = build_store(chosen, size, config.data, use_cache=False, allow_bad=True)
    store.mean, store.std = images.model.meta.mean, images.model.meta.std
    plan = config.make_views(config.size or images.model.meta.size)
    names = ", ".join(store.dataset.keys)
    alt = f"Random views of {len(store)} training images, a row each, the original first: {names}"
    return Picture(title, encode_picture(draw_views(plan, store, seed=config.seed), quality=80), alt)


def choose_samples(images: ImageMap) -> list[int]:
    """Choose images to look into: confident mistakes and, from other classes, correct predictions."""
    chosen = list(images.mistakes[: SAMPLES // 3])
    classes = {images.labels[i] for i in chosen}
    for i in range(len(images.keys)):
        if len(chosen) == SAMPLES:
            break
        is_right = not images.predicted or images.labels[i] == images.predicted[i]
        if i not in chosen and is_right and (images.labels[i] not in classes or images.labels[i] == -1):
            chosen.append(i)
            classes.add(images.labels[i])
    return chosen
