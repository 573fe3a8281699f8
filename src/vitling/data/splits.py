"""Splits of a source (train, val, test, pool) with numbered classes, and the hold-out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile, Dataset, Splits
from vitling.data.holdout import assign_folds, hold_out_images
from vitling.data.sources import read_source
from vitling.data.sources.source import Source, concat_splits
from vitling.errors import UserError
from vitling.formatting import shorten_list

if TYPE_CHECKING:
    from vitling.data.scan import ImageFacts

Spec = str | os.PathLike[str] | Source
DEFAULT_HOLD_OUT = 0.1  # fraction of train
MAX_BAD_FRACTION = 0.01  # of the images of a split, without --allow-bad


def open(spec: Spec, config: DataConfig | None = None, val: str | None = None, seed: int = 0) -> Splits:
    """Open the dataset that `spec` names (`vitling.data.sources` lists the forms), or one that was read already.

    `val`: None uses the val split of the data or, if it has none, holds out a tenth of the labelled images; "none"
    trains on everything; a fraction holds out that much. `config.folds` returns one fold of a cross-validation.
    """
    config = config or DataConfig()
    if config.folds:
        return _open_fold(spec, config, val, seed)
    if val is None:
        splits = read_splits(spec, config)
        return (
            splits
            if splits.val or splits.train.task == "none"
            else _hold_out_val(splits, DEFAULT_HOLD_OUT, seed, config)
        )
    fraction = parse_fraction(val)
    splits = read_splits(spec, config, merge_val=True)
    return _hold_out_val(splits, fraction, seed, config) if fraction else splits


def read_splits(spec: Spec, config: DataConfig, merge_val: bool = False, needs_train: bool = True) -> Splits:
    """Read the splits that the data defines; `merge_val` moves its val split into train.

    Unless `needs_train`, data without a train split is accepted, and train is empty.
    """
    source = spec.copy() if isinstance(spec, Source) else read_source(str(spec), config)
    has_train = _ensure_train(source, source.name if isinstance(spec, Source) else str(spec), needs_train)
    if merge_val and "val" in source.splits and not _lacks_labels(source):
        n = len(source.splits["val"])
        source.splits["train"] = concat_splits([source.splits["train"], source.splits.pop("val")])
        source.notes.append(f"The val split of the data ({n:,} images) is used as part of train.")
    _reconcile_labels(source)
    names = _list_class_names(source)
    _check_classes_known(source, names)
    groups = _number_groups(source)
    datasets = {split: _make_dataset(source, split, names, groups.get(split)) for split in source.splits}
    if has_train and (rare := _find_single_images(datasets["train"])):
        source.warnings.append(f"Classes with one image only: {shorten_list(rare)}. Are their names spelt correctly?")
    return Splits(
        train=datasets["train"] if has_train else datasets["train"].take([]),
        val=datasets.get("val"),
        pool=datasets.get("pool"),
        notes=source.notes,
        warnings=source.warnings,
        bad=source.bad,
        hidden_test=datasets.get("test"),
    )


def _find_single_images(train: Dataset) -> list[str]:
    """Return the classes with one image, if most classes have more."""
    if train.labels is None or train.labels.ndim != 1:
        return []
    counts = np.bincount(train.labels, minlength=len(train.class_names))
    rare = np.flatnonzero(counts == 1)
    return [train.class_names[c] for c in rare] if 2 * len(rare) < len(counts) else []


def require_labels(splits: Splits) -> None:
    """Raise UserError unless train has labels of at least two classes."""
    train = splits.train
    if train.task == "none":
        raise UserError(
            f"{_format_name(train)} has no labels. Put the images into one folder per class, or pass a CSV with a "
            "label column; to train without labels, use `vitling pretrain --method idmm`."
        )
    present = [train.class_names[c] for c in sorted(_find_classes(train))]
    if {"images", "masks"} <= set(present) or {"images", "annotations"} <= set(present):
        raise UserError(
            f"{_format_name(train)} has folders {' and '.join(present[:2])}, which are not classes. Use `vitling "
            "segment` or `vitling detect` for annotated images, or frames:DATA to pre-train on the images alone."
        )
    if len(present) < 2:
        has = f'images of one class only, "{present[0]}"' if present else "no image with a class"
        raise UserError(
            f"{_format_name(train)} has {has}. A classifier needs two classes: pass the folder that contains the "
            "class folders; `vitling pretrain --method idmm` needs no classes."
        )


def _format_name(split: Dataset) -> str:
    """Return `train of photos`; `photos/train` would look like a folder that may not exist."""
    where, _, name = split.name.rpartition("/")
    return f"{name} of {where}" if where else name


def drop_bad(
    dataset: Dataset, facts: ImageFacts, allow_bad: bool, split: str = "train", known_bad: Sequence[BadFile] = ()
) -> tuple[Dataset, list[BadFile]]:
    """Separate the images that can be decoded from the bad ones.

    Unless `allow_bad`, raises UserError if more than one image and 1 % are bad, or a class of train loses all images.
    `known_bad` are files that were bad before decoding (`Splits.bad`); those of this split are counted too.
    """
    bad = [BadFile(dataset.keys[i], reason, split) for i, reason in facts.reasons.items()]
    all_bad = [file for file in known_bad if file.split == split] + bad
    total = len(dataset) + len(all_bad) - len(bad)
    if not all_bad:
        return dataset, []
    listed = shorten_list([f"{file.key}: {file.reason}" for file in all_bad])
    count = f"{len(all_bad):,} of {total:,} images in {split} cannot be used"
    if not facts.ok.any():
        raise UserError(f"{count}, so none is left ({listed}).")
    kept = dataset.take(np.flatnonzero(facts.ok))
    if not allow_bad:
        fix = "Fix or remove them, or pass --allow-bad to continue without them."
        if len(all_bad) > max(1, MAX_BAD_FRACTION * total):
            raise UserError(f"{count} ({len(all_bad) / total:.1%}; up to 1 %, or one, is allowed): {listed}. {fix}")
        if split == "train" and (lost := _find_classes(dataset) - _find_classes(kept)):
            names = shorten_list([dataset.class_names[c] for c in sorted(lost)])
            raise UserError(f"{count}, and no image of {names} is left: {listed}. {fix}")
    return kept, bad


def _find_classes(dataset: Dataset) -> set[int]:
    if dataset.labels is None:
        return set()
    return set((dataset.labels if dataset.labels.ndim == 1 else dataset.labels.nonzero()[1]).tolist())


def parse_fraction(val: str) -> float:
    """Return the fraction of --val, 0 for none; raise UserError for anything else."""
    if val == "none":
        return 0.0
    try:
        fraction = float(val)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction < 1:
        raise UserError(f"--val {val} is neither none nor a fraction between 0 and 1; use for example --val 0.2.")
    return fraction


def _hold_out_val(splits: Splits, fraction: float, seed: int, config: DataConfig) -> Splits:
    train = splits.train
    if len(_find_classes(train)) == 1:
        require_labels(splits)
    too_few = (
        f"{_format_name(train)} has too few images or groups to hold out {fraction:.0%} of them. Pass --val none "
        "to train on everything, or --val 0.5."
    )
    kept, held, alike = hold_out_images(train, [train.labels], config, fraction, seed, too_few)
    _note_look_alikes(splits, alike)
    how = ["by class"] * (train.task != "none") + ["by group"] * (train.groups is not None)
    splits.notes.append(
        f"{len(held):,} of {len(train):,} train images are held out as val"
        f"{' (' + ' and '.join(how) + ')' if how else ''}, seed {seed}."
    )
    return _move_to_val(splits, kept, held)


def _note_look_alikes(splits: Splits, alike: int) -> None:
    if alike:
        splits.notes.append(
            f"{alike:,} images of train look almost the same as another; they are kept together, in train or in val."
        )


def _open_fold(spec: Spec, config: DataConfig, val: str | None, seed: int) -> Splits:
    from vitling.data.look_alikes import group_look_alikes

    if val is not None:
        raise UserError("--data.folds already defines the val split; drop --val or --data.folds.")
    if config.folds < 2 or not 0 <= config.fold < config.folds:
        raise UserError(f"--data.fold {config.fold} --data.folds {config.folds}: use 2 folds or more, numbered from 0.")
    splits = read_splits(spec, config, merge_val=True)
    train = splits.train
    if config.folds > len(train):
        raise UserError(
            f"{_format_name(train)} has {len(train):,} images, too few for {config.folds} folds; use fewer."
        )
    groups, alike = group_look_alikes(train, config)
    _note_look_alikes(splits, alike)
    folds = assign_folds(train.labels, groups, len(train), config.folds, seed)
    held = folds == config.fold
    if not held.any() or held.all():
        raise UserError(f"{_format_name(train)} has too few images or groups for {config.folds} folds; use fewer.")
    splits.notes.append(f"Fold {config.fold} of {config.folds}: {held.sum():,} of {len(train):,} train images are val.")
    if fixed := int((folds < 0).sum()):
        splits.notes.append(f"{fixed:,} images are in train in every fold: their class has no others.")
    return _move_to_val(splits, np.flatnonzero(~held), np.flatnonzero(held))


def _move_to_val(splits: Splits, kept: np.ndarray, held: np.ndarray) -> Splits:
    val = splits.train.take(held, splits.train.name.removesuffix("train") + "val")
    return replace(splits, train=splits.train.take(kept), val=val)


def _ensure_train(source: Source, spec: str, needed: bool) -> bool:
    """Return whether the source has a train split; otherwise the labelled splits stand in to define the classes."""
    source.splits = {name: split for name, split in source.splits.items() if len(split)}
    if not source.splits:
        why = " ".join(source.notes) or "Pass the folder that contains the images or the class folders."
        raise UserError(f"{spec} has no images. {why}")
    if set(source.splits) == {"pool"}:
        source.splits["train"] = source.splits.pop("pool")
    if "train" in source.splits:
        return True
    if needed:
        has = " and ".join(sorted(source.splits))
        raise UserError(f"{spec} has only {has}, and nothing to train on. Add train/, or pass train=PATH,test=PATH.")
    source.splits["train"] = concat_splits([split for name, split in source.splits.items() if name != "pool"])
    return False


def _lacks_labels(source: Source) -> bool:
    """Return whether train has labels and val has none; together they would have none."""
    return source.splits["train"].labels is not None and source.splits["val"].labels is None


def _reconcile_labels(source: Source) -> None:
    """Follow train: without its labels those of val and test are not used, and val without labels is dropped."""
    train = source.splits["train"]
    for name in ("val", "test"):
        split = source.splits.get(name)
        if split is None or (split.labels is None) == (train.labels is None):
            continue
        if train.labels is None:
            split.labels = None
            source.notes.append(f"Train has no labels, so those of {name} are not used.")
        elif name == "val":
            del source.splits["val"]
            source.notes.append("The val split has no labels and is not used.")
        else:
            source.notes.append("The test split has no labels.")
    if "pool" in source.splits:
        source.splits["pool"].labels = None


def _list_class_names(source: Source) -> tuple[str, ...]:
    train = source.splits["train"]
    if train.labels is None:
        return ()
    present = {name for words in train.labels for name in words}
    names = source.class_order or tuple(sorted(present))
    if empty := [name for name in names if name not in present]:
        source.notes.append(f"Classes with no image in train: {shorten_list(empty)}.")
    return tuple(names)


def _check_classes_known(source: Source, names: tuple[str, ...]) -> None:
    train = source.splits["train"].labels or []
    present = {name for words in train for name in words}
    for name in ("val", "test"):
        split = source.splits.get(name)
        if split is None or split.labels is None:
            continue
        unknown = sorted({word for words in split.labels for word in words} - present)
        if unknown:
            raise UserError(
                f"{name} has classes that train does not have: {shorten_list(unknown)}. Train has "
                f"{shorten_list(list(names), 3)}. Add images of them to train, or remove them from {name}."
            )


def _number_groups(source: Source) -> dict[str, np.ndarray]:
    """Number the groups, consistently across splits; an image without a group gets one of its own."""
    codes: dict[str, int] = {}
    numbers = {}
    for name, split in source.splits.items():
        if split.groups is not None:
            groups = [group or f"\0{name}{i}" for i, group in enumerate(split.groups)]
            numbers[name] = np.array([codes.setdefault(group, len(codes)) for group in groups], np.int64)
    for name in ("val", "test"):
        if "train" in numbers and name in numbers and (shared := len(np.intersect1d(numbers["train"], numbers[name]))):
            source.notes.append(f"{shared:,} groups are in both train and {name}.")
    return numbers


def _make_dataset(source: Source, name: str, class_names: tuple[str, ...], groups: np.ndarray | None) -> Dataset:
    split = source.splits[name]
    return Dataset(
        name=f"{source.name}/{name}",
        keys=split.keys,
        reader=split.reader,
        rows=split.rows,
        labels=None if split.labels is None else _number_labels(split.labels, class_names, source.multi),
        class_names=class_names if name != "pool" else (),
        groups=groups,
    )


def _number_labels(labels: Sequence[tuple[str, ...]], class_names: tuple[str, ...], multi: bool) -> np.ndarray:
    number = {name: c for c, name in enumerate(class_names)}
    if unknown := {name for names in labels for name in names} - number.keys():
        raise UserError(f"Images are labelled {shorten_list(sorted(unknown))}, which is not in the list of classes.")
    if not multi:
        return np.array([number[name] for (name,) in labels], np.int64)
    table = np.zeros((len(labels), len(class_names)), bool)
    for i, names in enumerate(labels):
        table[i, [number[name] for name in names]] = True
    return table
