"""Annotated data of any format: `open_annotated`."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitling.data.annotations import coco, label_studio, masks, voc, yolo
from vitling.data.annotations.build import build_split
from vitling.data.annotations.config import AnnotationConfig, Format
from vitling.data.annotations.files import Files, get_suffix, open_files
from vitling.data.annotations.parsed import Parsed
from vitling.data.annotations.semantic import BACKGROUND, paint_instances
from vitling.data.annotations.split import AnnotatedSplit, DenseTask, compare_classes, merge_splits
from vitling.data.config import DataConfig
from vitling.data.holdout import hold_out_images
from vitling.data.sources import NAMED_SPLIT
from vitling.data.splits import DEFAULT_HOLD_OUT, parse_fraction
from vitling.errors import InvalidFile, UserError
from vitling.formatting import shorten_list
from vitling.loading import expand_home, parse_json

MAX_JSON = 50  # JSON files to look into; more are annotations of single images, which are not supported
Splits = dict[str, AnnotatedSplit | None]


def open_annotated(
    spec: str,
    task: DenseTask,
    settings: AnnotationConfig | None = None,
    config: DataConfig | None = None,
    val: str | None = None,
    seed: int = 0,
    class_names: tuple[str, ...] | None = None,
    needs_train: bool = True,
    with_masks: bool = True,
) -> Splits:
    """Open annotated images as the splits train, val and test, of which the last two may be None.

    `val`: None uses the val split of the data or, if it has none, holds out a tenth of train; "none" trains on
    everything, val of the data included; a fraction holds out that much of everything. `class_names` are those of a
    trained model: other classes are problems. Unless `needs_train`, train may be None too, and nothing is held out.
    Unless `with_masks`, instances are boxes only, and those whose mask is missing or broken are kept.
    """
    settings, config = settings or AnnotationConfig(), config or DataConfig()
    found = _read_named(spec, task, settings, config, class_names, with_masks)
    splits: Splits = {name: found.get(name) for name in ("train", "val", "test")}
    train = splits["train"]
    if not needs_train:
        return splits
    if train is None:
        raise UserError(f"{spec} has no split to train on; its splits are {', '.join(found) or 'empty'}.")
    if train.counts is None or not train.counts.any():
        listed = shorten_list([f"{problem.file}: {problem.what}" for problem in train.problems], 3)
        raise UserError(f"No image of {train.dataset.name} has an annotation that can be used ({listed or 'none'}).")
    fraction = DEFAULT_HOLD_OUT if val is None else parse_fraction(val)
    if val is not None and splits["val"] is not None:
        train = merge_splits(train, splits["val"])
        splits |= {"train": train, "val": None}
    if splits["val"] is None and fraction:
        splits["train"], splits["val"] = _hold_out_val(train, fraction, seed, config)
    return splits


def find_task(spec: str, settings: AnnotationConfig) -> DenseTask | None:
    """Return what the annotations of a folder, tar or JSON file are for; None if it has none."""
    if NAMED_SPLIT.match(spec):
        spec = NAMED_SPLIT.split(spec)[2]
    path = expand_home(spec)
    if not path.is_dir() and path.suffix.lower() not in (".tar", ".json"):
        return None
    if settings.format != "auto":
        return "segment" if settings.format in ("masks", "ade20k") else "detect"
    if not path.exists():  # a pattern of several tars, which have labels only
        return None
    files, wanted = open_files(spec)
    format = _find_format(files, "detect", _read_json_files(files, wanted))
    return None if format is None else "segment" if format in ("masks", "ade20k") else "detect"


def _read_named(
    spec: str,
    task: DenseTask,
    settings: AnnotationConfig,
    config: DataConfig,
    class_names: tuple[str, ...] | None,
    with_masks: bool,
) -> Mapping[str, AnnotatedSplit]:
    """Read one spec, or one per split: `train=a.json,test=b.json`. Train comes first and decides the classes."""
    if not NAMED_SPLIT.match(spec):
        return _read(spec, task, settings, config, class_names, with_masks)
    words = NAMED_SPLIT.split(spec)[1:]
    parts = dict(zip(words[::2], words[1::2]))
    splits: dict[str, AnnotatedSplit] = {}
    for name in sorted(parts.keys() & {"train", "val", "test"}, key=["train", "val", "test"].index):
        known = class_names or (splits["train"].class_names if "train" in splits else None)
        found = _read(parts[name], task, settings, config, known, with_masks)
        if name not in found and len(found) != 1:
            raise UserError(f"{name}={parts[name]} has {', '.join(found)}, but not {name}. Pass that split alone.")
        splits[name] = found[name] if name in found else next(iter(found.values()))
    return splits


def _read(
    spec: str,
    task: DenseTask,
    settings: AnnotationConfig,
    config: DataConfig,
    class_names: tuple[str, ...] | None,
    with_masks: bool,
) -> Mapping[str, AnnotatedSplit]:
    files, wanted = open_files(spec)
    json_files = _read_json_files(files, wanted)
    format = settings.format if settings.format != "auto" else _find_format(files, task, json_files)
    if format is None:
        raise UserError(
            f"{spec} has no annotations that vitling knows. It reads COCO and Label Studio JSON, Pascal VOC XML, YOLO "
            "text files, and masks/ next to images/; --annotations.format names one of them."
        )
    if format in ("masks", "ade20k"):
        if task == "detect":
            raise UserError(f"{spec} has semantic masks, which do not separate objects; use `vitling segment`.")
        pairs = masks.pair_masks(files)
        if not pairs.splits:
            raise UserError(f"{spec} has no pairs of images and masks. Put them into images/ and masks/.")
        return masks.read(files, pairs, replace(settings, format=format), config, class_names)
    if settings.classes:
        raise UserError(f"--annotations.classes names the values of masks; {spec} names its classes itself ({format}).")
    parsed = _parse(format, files, json_files, "train" if wanted else None)
    if not any(parsed.splits.values()):
        listed = [f"{problem.file}: {problem.what}" for found in parsed.problems.values() for problem in found]
        if not listed:
            raise UserError(f"{spec} lists no annotated images ({format}).")
        raise UserError(f"None of the annotated images of {spec} can be used ({shorten_list(listed, 3)}).")
    names = class_names or parsed.class_names
    if task == "segment" and class_names:
        if names[0] != BACKGROUND:
            raise UserError(
                f"{spec} has instances, which leave a background; the model's classes ({shorten_list(names, 3)}) come "
                "from masks without a background. Pass data with semantic masks, in images/ and masks/."
            )
        names = names[1:]
    if class_names:
        parsed.notes += compare_classes(spec, parsed.class_names, names)
    paints = task == "segment"
    built = {split: build_split(files, parsed, split, names, config, with_masks, paints) for split in parsed.splits}
    return {name: paint_instances(*found) if paints else found[0] for name, found in built.items()}


def _read_json_files(files: Files, wanted: str | None) -> dict[str, Any]:
    """Read the JSON files that may hold annotations: the one named, or those with usual names, or all."""
    names = [name for name in files.names if get_suffix(name) == ".json"]
    usual = [name for name in names if posixpath.basename(name).startswith("instances")]
    names = [wanted] if wanted else usual or [name for name in names if name.endswith(".coco.json")] or names
    if len(names) > MAX_JSON:
        return {}
    contents = {}
    for name in names:
        try:
            contents[name] = parse_json(files.read(name), Any, name)
        except InvalidFile:  # files that look like annotations must be valid, others may be anything
            if name == wanted or usual:
                raise
    return contents


def _find_format(files: Files, task: DenseTask, json_files: dict[str, Any]) -> Format | None:
    of_masks: Format | None = None
    if masks.pair_masks(files).splits:
        of_masks = "ade20k" if masks.is_ade20k(files) else "masks"
    if task == "segment" and of_masks:
        return of_masks
    if any(map(coco.is_coco, json_files.values())):
        return "coco"
    if any(map(label_studio.is_export, json_files.values())):
        return "label-studio"
    if voc.is_voc(files):
        return "voc"
    if yolo.is_yolo(files):
        return "yolo"
    return of_masks


def _parse(format: Format, files: Files, json_files: dict[str, Any], split: str | None) -> Parsed:
    if format == "coco":
        contents = {name: content for name, content in json_files.items() if coco.is_coco(content)}
        return coco.read(files, contents, split)
    if format == "label-studio":
        exports = {name: content for name, content in json_files.items() if label_studio.is_export(content)}
        return label_studio.read(files, exports)
    return voc.read(files) if format == "voc" else yolo.read(files)


def _hold_out_val(
    train: AnnotatedSplit, fraction: float, seed: int, config: DataConfig
) -> tuple[AnnotatedSplit, AnnotatedSplit]:
    assert train.counts is not None
    too_few = (
        f"There are too few images ({len(train)}) to hold out {fraction:.0%} of them. Pass --val none to train on "
        "everything, or --val 0.5."
    )
    stratify_by = (train.counts > 0, None)  # without classes if all are too rare to be divided
    kept, held, alike = hold_out_images(train.dataset, stratify_by, config, fraction, seed, too_few)
    note = f"{len(held):,} of {len(train):,} train images are held out as val (by class), seed {seed}."
    if alike:
        note += f" {alike:,} images look almost the same as another; they are kept together."
    name = train.dataset.name.removesuffix("train") + "val"
    val = replace(train.take(held, name), problems=(), notes=())
    return replace(train.take(kept), notes=(*train.notes, note)), val
