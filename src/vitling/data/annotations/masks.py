"""Reader for folders of semantic masks: images/ and masks/ with or without splits, Pascal VOC's and ADE20K's layout."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

import numpy as np

from vitling.data.annotations.build import make_dataset, map_files
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.annotations.files import IMAGE_FOLDERS, Files, find_split, read_lists, read_names, strip_folder
from vitling.data.annotations.split import IGNORE, AnnotatedSplit, Problem, compare_classes, count_values
from vitling.data.config import DataConfig
from vitling.data.decode import decode_indices, read_size
from vitling.data.scan import describe_error
from vitling.errors import UserError
from vitling.formatting import format_count

MASK_FOLDERS = frozenset(["masks", "mask", "labels", "label", "annotations", "segmentationclass"])
MASK_ENDING = re.compile(r"[-_](masks?|labels?|seg|gt|p|l)$", re.IGNORECASE)  # x_mask.png beside x.jpg
CLASS_FILES = ("classes.txt", "class_names.txt", "labels.txt", "codes.txt")
VALUES = 256  # of masks with 8 bits


@dataclass
class Pairs:
    """Images and masks by split, and what has no partner."""

    splits: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    problems: dict[str, list[Problem]] = field(default_factory=dict)


@dataclass
class Masks:
    """Checked pairs of a split: sizes and how many pixels have each value."""

    pairs: list[tuple[str, str]]
    sizes: np.ndarray  # int64 [N, 2]
    values: np.ndarray  # int64 [N, 256]
    problems: list[Problem]


class MaskReader:
    """Reader of masks, whose values become classes by a table."""

    def __init__(self, files: Files, names: list[str], table: np.ndarray, config: DataConfig):
        self.reader, self.rows = files.reader, [files.rows[name] for name in names]
        self.table, self.config = table, config

    def __call__(self, i: int) -> np.ndarray:
        raw = self.reader(self.rows[i])
        assert isinstance(raw, bytes)
        return self.table[_read_values(raw, self.config)]


def pair_masks(files: Files) -> Pairs:
    """Pair images and masks by their path without the folder that says which of them they are."""
    masks: dict[str, str] = {}
    images: dict[str, str] = {}
    for name in files.images:
        if key := strip_folder(name, MASK_FOLDERS):
            masks.setdefault(key, name)
        elif key := strip_folder(name, IMAGE_FOLDERS):
            images.setdefault(key, name)
    for key in [key for key in masks if key not in images and MASK_ENDING.sub("", key) in images]:
        masks.setdefault(MASK_ENDING.sub("", key), masks.pop(key))
    return _split_pairs(files, images, masks)


def _split_pairs(files: Files, images: dict[str, str], masks: dict[str, str]) -> Pairs:
    pairs = Pairs()
    listed = read_lists(files, "segmentation")
    for key in sorted(images.keys() | masks.keys()):
        split = listed.get(posixpath.basename(key), "") if listed else find_split(posixpath.dirname(key))
        if not split:
            continue
        if key in images and key in masks:
            pairs.splits.setdefault(split, []).append((images[key], masks[key]))
        else:
            what = "image without a mask" if key in images else "missing image"
            file = images[key] if key in images else masks[key]
            pairs.problems.setdefault(split, []).append(Problem(file, what))
    return pairs


def is_ade20k(files: Files) -> bool:
    """Return whether the files lie as in ADE20K's scene parsing benchmark."""
    folders = {"/".join(name.lower().split("/")[:2]) for name in files.images}
    return {"images/training", "annotations/training"} <= folders


def read(
    files: Files,
    pairs: Pairs,
    settings: AnnotationConfig,
    config: DataConfig,
    class_names: tuple[str, ...] | None = None,
) -> dict[str, AnnotatedSplit]:
    """Read all masks once to find their classes and what is wrong with them; `class_names` fixes the classes."""
    checked = {split: _check_pairs(files, pairs, split, config) for split in pairs.splits}
    used = np.flatnonzero(sum(masks.values.sum(axis=0) for masks in checked.values()))
    names, notes = _name_values(files, settings, used)
    order = class_names or tuple(dict.fromkeys(names.values()))
    notes += compare_classes(files.name, tuple(names.values()), order) if names else ()
    if len(order) > IGNORE:
        raise UserError(f"The masks of {files.name} have {len(order)} classes; up to {IGNORE} are supported.")
    number = {name: c for c, name in enumerate(order)}
    table = np.full(VALUES, IGNORE, np.uint8)
    for value, name in names.items():
        table[value] = np.uint8(number.get(name, IGNORE))
    ignored = _list_ignored(settings, names)
    splits = {}
    for split, masks in checked.items():
        _note_unknown_values(masks, table, ignored)
        counts = np.zeros((len(masks.pairs), len(order)), np.int64)
        for value in np.flatnonzero(table != IGNORE).tolist():
            counts[:, table[value]] += masks.values[:, value]
        splits[split] = AnnotatedSplit(
            make_dataset(files, split, [image for image, _ in masks.pairs]),
            order,
            masks.sizes,
            read_mask=MaskReader(files, [mask for _, mask in masks.pairs], table, config),
            counts=counts,
            problems=tuple(masks.problems),
            notes=notes,
        )
    return splits


def _check_pairs(files: Files, pairs: Pairs, split: str, config: DataConfig) -> Masks:
    def check(pair: tuple[str, str]) -> tuple[tuple[int, int], np.ndarray]:
        size = read_size(files.read(pair[0]), config.max_pixels)
        values = _read_values(files.read(pair[1]), config)
        if values.shape != size:
            height, width = values.shape
            raise ValueError(f"mask of another size: {width} x {height}, the image has {size[1]} x {size[0]}")
        return size, count_values(values)

    problems = list(pairs.problems.get(split, ()))
    kept, sizes, values = [], [], []
    for pair, found in zip(pairs.splits[split], map_files(check, pairs.splits[split])):
        if isinstance(found, Exception):
            what = str(found) if isinstance(found, ValueError) else f"unreadable: {describe_error(found)}"
            problems.append(Problem(pair[1], what))
        else:
            kept.append(pair)
            sizes.append(found[0])
            values.append(found[1])
    return Masks(
        kept, np.array(sizes, np.int64).reshape(-1, 2), np.array(values, np.int64).reshape(-1, VALUES), problems
    )


def _read_values(raw: bytes, config: DataConfig) -> np.ndarray:
    """Return the values of a mask, uint8; larger ones become 255."""
    values = decode_indices(raw, config.max_pixels)
    return values.astype(np.uint8) if values.dtype.itemsize == 1 else np.clip(values, 0, IGNORE).astype(np.uint8)


def _name_values(files: Files, settings: AnnotationConfig, used: np.ndarray) -> tuple[dict[int, str], tuple[str, ...]]:
    """Name the classes: value -> name, without the ignored values."""
    listed = _read_class_names(files, settings)
    ade20k = settings.format == "ade20k"
    ignored = settings.ignore_index if settings.ignore_index is not None else 0 if ade20k else None
    if listed:
        largest = used[used != IGNORE].max(initial=0)
        first = 1 if ignored == 0 and (ade20k or len(listed) <= largest) else 0
        names = {value: name for value, name in enumerate(listed, first) if value != ignored and value < IGNORE}
        return names, ()
    if ignored is None and used.tolist() == [0, IGNORE]:
        return {0: "background", IGNORE: "foreground"}, ("The masks have the values 0 and 255: 255 is the foreground.",)
    values = [int(value) for value in used if value not in (ignored, IGNORE)]
    return {value: f"class {value}" for value in values}, ()


def _list_ignored(settings: AnnotationConfig, names: dict[int, str]) -> set[int]:
    """List the values that are ignored on purpose."""
    ignored = {IGNORE, 0} if settings.format == "ade20k" else {IGNORE}
    return (ignored | ({settings.ignore_index} if settings.ignore_index is not None else set())) - names.keys()


def _note_unknown_values(masks: Masks, table: np.ndarray, ignored: set[int]) -> None:
    unknown = np.flatnonzero((table == IGNORE) & ~np.isin(np.arange(VALUES), list(ignored)))
    for (_, mask), values in zip(masks.pairs, masks.values):
        for value in unknown[values[unknown] > 0]:
            pixels = format_count(int(values[value]), "pixel")
            masks.problems.append(Problem(mask, f"mask value without a class name, ignored: {value} in {pixels}"))


def _read_class_names(files: Files, settings: AnnotationConfig) -> list[str]:
    if settings.classes:
        return [name.strip() for name in settings.classes.split(",")]
    if settings.format == "ade20k" and "objectInfo150.txt" in files.rows:
        lines = files.read("objectInfo150.txt").decode("utf-8", "replace").splitlines()[1:]
        return [line.split("\t")[-1].split(",")[0].strip() for line in lines if line.strip()]
    return read_names(files, CLASS_FILES)
