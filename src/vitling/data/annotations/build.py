"""Checks of parsed annotations against the images, and the splits built from those that pass."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from vitling.data.annotations.files import Files
from vitling.data.annotations.instances import Instances
from vitling.data.annotations.parsed import Box, Parsed, ParsedImage, Shape
from vitling.data.annotations.rle import RLE
from vitling.data.annotations.segments import read_segment
from vitling.data.annotations.split import AnnotatedSplit, Problem
from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset
from vitling.data.decode import read_size
from vitling.data.host import count_cores
from vitling.data.scan import describe_error
from vitling.shortage import raise_if_short

Item = TypeVar("Item")
LeftOut = dict[int, list[Box]]  # image -> boxes of annotations that are left out, in pixels
MIN_SIDE = 1e-3  # pixels; smaller boxes are empty
MAX_INSTANCES = 3000  # of an image; a detector compares each with every anchor: 1,000 are fine, 20,000 take over 10 GB
CHUNK = 16  # files per task of the thread pool


@dataclass
class Rows:
    """Columns of `Instances` while they grow."""

    boxes: list[Box] = field(default_factory=list)  # pixels
    classes: list[int] = field(default_factory=list)
    crowd: list[bool] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)
    segments: list[RLE | None] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=lambda: defaultdict(list))


def build_split(
    files: Files,
    parsed: Parsed,
    split: str,
    class_names: tuple[str, ...],
    config: DataConfig,
    with_masks: bool = True,
    keep_crowded: bool = False,
) -> tuple[AnnotatedSplit, LeftOut]:
    """Build a split of boxes and, `with_masks`, instance masks.

    Images with more than MAX_INSTANCES are left out unless `keep_crowded`. Broken annotations are left out and listed
    in `problems`; their boxes, where they have one, are returned too.
    """
    problems = list(parsed.problems.get(split, ()))
    images = _drop_repeated(parsed.splits[split], problems)
    if not keep_crowded:
        images = _drop_crowded(images, problems)
    images, sizes = check_sizes(files, images, config, problems)
    instances, left_out = _collect_instances(images, sizes, class_names, problems, with_masks)
    counts = np.zeros((len(images), len(class_names)), np.int64)
    np.add.at(counts, (instances.images, instances.classes), 1)
    dataset = make_dataset(files, split, [image.file for image in images])
    notes = tuple(parsed.notes)
    return AnnotatedSplit(dataset, class_names, sizes, instances, None, counts, tuple(problems), notes), left_out


def make_dataset(files: Files, split: str, names: Sequence[str]) -> Dataset:
    rows = np.array([files.rows[name] for name in names], np.int64)
    return Dataset(f"{files.name}/{split}", list(names), files.reader, rows)


def map_files(function: Callable[[Item], Any], items: Sequence[Item]) -> list[Any]:
    """Call a function that reads files for each item, in threads; an exception takes the place of a result."""

    def call(item: Item) -> Any:
        try:
            return function(item)
        except Exception as error:  # one bad file must not stop the others
            raise_if_short(error)
            return error

    with ThreadPoolExecutor(count_cores(), thread_name_prefix="annotations") as pool:
        return list(pool.map(call, items, chunksize=CHUNK))


def check_sizes(
    files: Files, images: list[ParsedImage], config: DataConfig, problems: list[Problem]
) -> tuple[list[ParsedImage], np.ndarray]:
    """Measure the images, and drop those that cannot be read or differ from the size in the annotations."""
    found = map_files(lambda image: read_size(files.read(image.file), config.max_pixels), images)
    kept, sizes = [], []
    for image, size in zip(images, found):
        if isinstance(size, Exception):
            problems.append(Problem(image.file, f"unreadable image: {describe_error(size)}"))
        elif image.size is not None and tuple(image.size) != size:
            stated = f"{image.size[1]} x {image.size[0]} in the annotations"
            problems.append(Problem(image.file, f"image of another size: {size[1]} x {size[0]}, {stated}"))
        else:
            kept.append(image)
            sizes.append(size)
    return kept, np.array(sizes, np.int64).reshape(-1, 2)


def _drop_repeated(images: list[ParsedImage], problems: list[Problem]) -> list[ParsedImage]:
    first: dict[str, ParsedImage] = {}
    for image in images:
        if image.file in first:
            problems.append(Problem(image.file, "image listed twice"))
        else:
            first[image.file] = image
    return list(first.values())


def _drop_crowded(images: list[ParsedImage], problems: list[Problem]) -> list[ParsedImage]:
    """Leave out images with more instances than a detector can be trained on."""
    crowded = [image for image in images if len(image.shapes) > MAX_INSTANCES]
    what = f"image with more than {MAX_INSTANCES:,} annotations; cut it into tiles"
    problems += [Problem(image.file, what) for image in crowded]
    return [image for image in images if len(image.shapes) <= MAX_INSTANCES]


def _collect_instances(
    images: list[ParsedImage], sizes: np.ndarray, class_names: tuple[str, ...], problems: list[Problem], masks: bool
) -> tuple[Instances, LeftOut]:
    numbers = {name: c for c, name in enumerate(class_names)}
    rows = Rows()
    for i, (image, (height, width)) in enumerate(zip(images, sizes.tolist())):
        scale = np.array([width, height] if image.relative else [1, 1], np.float64)
        for shape in image.shapes:
            box = None
            try:
                box = None if shape.box is None else _clip_box(shape.box, scale, height, width)
                _add_shape(rows, i, shape, box, numbers, height, width, scale, masks)
            except ValueError as error:
                problems.append(Problem(image.file, _describe(str(error), shape)))
                if box is not None:
                    rows.left_out[i].append(box)
    kept = np.ones(len(rows.classes), bool)
    has_mask = np.array([segment is not None for segment in rows.segments], bool)
    use_masks = masks and has_mask.sum() * 2 > len(has_mask)
    if use_masks and not has_mask.all():
        kept = has_mask
        for k in np.flatnonzero(~has_mask):
            problems.append(Problem(images[rows.images[k]].file, _describe("no mask", rows.shapes[k])))
            rows.left_out[rows.images[k]].append(rows.boxes[k])
    return _make_instances(rows, sizes, np.flatnonzero(kept), bool(use_masks)), rows.left_out


def _describe(what: str, shape: Shape) -> str:
    return f"{what}{', ' if ':' in what else ': '}{shape.where}" if shape.where else what


def _add_shape(
    rows: Rows,
    i: int,
    shape: Shape,
    box: Box | None,
    numbers: dict[str, int],
    height: int,
    width: int,
    scale: np.ndarray,
    masks: bool,
) -> None:
    """Append a shape, or raise ValueError with what is wrong with it; its mask may be broken unless `masks`."""
    if shape.label not in numbers:
        raise ValueError(f"unknown category: {shape.label}")
    rle, area = None, 0.0
    if shape.segment is not None:
        try:
            rle, area, own_box = read_segment(shape.segment, height, width, scale)
            box = box or own_box
        except ValueError:
            if masks or box is None:
                raise
    if box is None:
        raise ValueError("no box")
    stated = shape.area if shape.area is not None and math.isfinite(shape.area) and shape.area > 0 else None
    rows.boxes.append(box)
    rows.classes.append(numbers[shape.label])
    rows.crowd.append(shape.crowd)
    rows.areas.append(stated or area or (box[2] - box[0]) * (box[3] - box[1]))
    rows.segments.append(rle)
    rows.images.append(i)
    rows.shapes.append(shape)


def _clip_box(box: Box, scale: np.ndarray, height: int, width: int) -> Box:
    """Return the part of a box inside the image, in pixels."""
    x, y = scale.tolist()
    left, top, right, bottom = box[0] * x, box[1] * y, box[2] * x, box[3] * y
    if not all(map(math.isfinite, (left, top, right, bottom))):
        raise ValueError("box that is not a number")
    if right < left or bottom < top:
        raise ValueError("inverted box")
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        raise ValueError("empty box")
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        raise ValueError("box outside of the image")
    return left, top, right, bottom


def _make_instances(rows: Rows, sizes: np.ndarray, kept: np.ndarray, with_masks: bool) -> Instances:
    images = np.array(rows.images, np.int64)[kept]
    boxes = np.array(rows.boxes, np.float64).reshape(-1, 4)[kept] / sizes[images][:, [1, 0, 1, 0]]
    return Instances(
        offsets=np.concatenate([[0], np.cumsum(np.bincount(images, minlength=len(sizes)))]).astype(np.int64),
        boxes=boxes.astype(np.float32),
        classes=np.array(rows.classes, np.int64)[kept],
        crowd=np.array(rows.crowd, bool)[kept],
        areas=np.array(rows.areas, np.float32)[kept],
        segments=[segment for k in kept if (segment := rows.segments[k]) is not None] if with_masks else None,
    )
