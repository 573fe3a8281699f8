"""A picture of random views: originals in the first column, their views next to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from vitling.data.config import DataConfig
from vitling.data.dataset import sample_evenly
from vitling.data.splits import read_splits
from vitling.data.store import Store, build_store, choose_normalisation, choose_size
from vitling.errors import UserError
from vitling.files import atomic_write
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.plan import Plan
from vitling.views.policies import make_plan
from vitling.views.renderer import Normaliser, Renderer

CELL, GAP, HEAD = 128, 4, 18  # pixels: side of a cell, space between cells, height of the heading
_COLOURS = ("#e6194b", "#4363d8", "#3cb44b", "#f58231", "#911eb4", "#42d4f4")


def draw_sheet(
    source: str,
    policy: str | Plan = "supervised",
    out: str = "views.png",
    images: int = 6,
    draws: int | None = None,
    boxes: bool = False,
    size: int | None = None,
    seed: int = 0,
    config: DataConfig | None = None,
) -> Path:
    """Write the picture of a policy, or of a plan with its own sizes, and return its path.

    A row holds `draws` views in the order of the plan, epoch after epoch; by default all of the plan's, at least eight.
    """
    if Path(out).suffix.lower() not in (".png", ".jpg", ".webp"):
        raise UserError(f"--out {out} is not a picture; name a .png, .jpg or .webp file.")
    for flag, count in (("images", images), ("draws", draws)):
        if count is not None and count < 1:
            raise UserError(f"--{flag} must be at least 1, not {count}.")
    plan = make_plan(policy, size) if isinstance(policy, str) else policy
    config = config or DataConfig()
    plan.check_channels(config.channels)
    dataset = read_splits(source, config, needs_train=False).train
    chosen = dataset.take(sample_evenly(len(dataset), images))
    side = choose_size(chosen, plan.store_side(len(dataset)))
    store = build_store(chosen, side, config, use_cache=False, allow_bad=True)
    store.mean, store.std = choose_normalisation(store, config)
    picture = draw_views(plan, store, draws, seed, boxes)
    with atomic_write(out) as file:
        picture.save(file, format=Image.registered_extensions()[Path(out).suffix.lower()])
    return Path(out)


def draw_views(plan: Plan, store: Store, draws: int | None = None, seed: int = 0, boxes: bool = False) -> Image.Image:
    """Draw a row for each image of the store: the original, and `draws` views in the order of the plan."""
    columns = _draw_columns(plan, store, max(8, plan.crops) if draws is None else draws, seed)
    return _draw_picture(store, columns, boxes)


@dataclass(frozen=True)
class _Column:
    """One view of every image, with the boxes it was cut from."""

    pixels: Tensor
    boxes: Tensor
    size: int
    colour: str  # of its group


def _draw_columns(plan: Plan, store: Store, count: int, seed: int) -> list[_Column]:
    columns: list[_Column] = []
    n, epoch = len(store), 0
    while len(columns) < count:
        view_batch = ViewBatch(plan, BatchKey(seed, epoch, 0, np.arange(n), n), np.arange(n))
        pixels, aspect = store.fetch(view_batch.instances)
        views = view_batch.render(pixels, aspect, Renderer(Normaliser(store.mean, store.std)))
        for group, colour, drawn, cut in zip(plan.groups, cycle(_COLOURS), views, view_batch.boxes(aspect)):
            columns += [_Column(one, box, group.size, colour) for one, box in zip(drawn.pixels.split(n), cut.split(n))]
        epoch += 1
    return columns[:count]


def _draw_picture(store: Store, columns: list[_Column], with_boxes: bool) -> Image.Image:
    rows, step = len(store), CELL + GAP
    sheet = Image.new("RGB", (step * (len(columns) + 1) + GAP, HEAD + step * rows + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, 3), "original", fill="black")
    largest = max(column.size for column in columns)
    for c, column in enumerate(columns, start=1):
        pen.text((GAP + step * c, 3), f"{column.size} px", fill=column.colour)
    for r in range(rows):
        corner = (GAP, HEAD + step * r)
        sheet.paste(draw_original(store, r, columns if with_boxes else []), corner)
        for c, column in enumerate(columns, start=1):
            side = CELL * column.size // largest
            view = to_rgb(column.pixels[r], store.mean, store.std).resize((side, side), Image.Resampling.LANCZOS)
            indent = (CELL - side) // 2
            sheet.paste(view, (GAP + step * c + indent, corner[1] + indent))
    return sheet


def draw_original(store: Store, i: int, columns: Sequence[_Column] = ()) -> Image.Image:
    """Draw an image in its own aspect ratio within a cell, with the boxes that its views were cut from."""
    pixels, aspect = store.fetch(np.array([i]))
    ratio = float(aspect[0])
    width, height = (CELL, max(1, round(CELL / ratio))) if ratio >= 1 else (max(1, round(CELL * ratio)), CELL)
    image = to_image(pixels[0].float()).resize((width, height), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(image)
    for column in columns:
        left, top, box_width, box_height = (column.boxes[i] * torch.tensor([width, height] * 2)).tolist()
        pen.rectangle((left, top, left + box_width - 1, top + box_height - 1), outline=column.colour)
    cell = Image.new("RGB", (CELL, CELL), "white")
    cell.paste(image, ((CELL - width) // 2, (CELL - height) // 2))
    return cell


def to_rgb(view: Tensor, mean: Sequence[float], std: Sequence[float]) -> Image.Image:
    """Undo the normalisation of a view [C, H, W]."""
    shift, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return to_image((view.float().cpu() * scale + shift) * 255)


def to_image(pixels: Tensor) -> Image.Image:
    """Convert an image [C, H, W] in 0..255: grey if C is 1, else its first three channels; a missing one is 0."""
    array = (pixels.round().clamp(0, 255).byte() if pixels.is_floating_point() else pixels).cpu()
    array = array.expand(3, -1, -1) if len(array) == 1 else array[:3]
    array = F.pad(array, (0, 0, 0, 0, 0, 3 - len(array)))
    return Image.fromarray(array.permute(1, 2, 0).contiguous().numpy())
