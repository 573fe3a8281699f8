"""`open(spec)`: a source's images as train, val, test and pool, with labels as numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile, Dataset, Splits
from vitling.data.holdout import assign_folds, hold_out
from vitling.data.sources import read_source
from vitling.data.sources.source import Source, SourceSplit, concat_splits
from vitling.errors import UserError
from vitling.formatting import shorten_list

if TYPE_CHECKING:
    from vitling.data.scan import ImageFacts

DEFAULT_HOLD_OUT = 0.1
MAX_BAD_FRACTION = 0.01
NAMED = "train=PATH,test=PATH"


def open(
    spec: str | os.PathLike[str], config: DataConfig | None = None, val: str | None = None, seed: int = 0
) -> Splits:
    """The data set that `spec` names (what it may be: `vitling.data.sources`).

    `val`: None takes the val split that the data has, else holds out a tenth of the labelled images; "none" trains on
    everything; a fraction holds out that much. `config.folds` gives one fold of a cross-validation instead.
    """
    config = config or DataConfig()
    if config.folds:
        return _fold(spec, config, val, seed)
    if val is None:
        splits = read_splits(spec, config)
        return splits if splits.val or splits.train.task == "none" else _with_hold_out(splits, DEFAULT_HOLD_OUT, seed)
    fraction = _fraction(val)
    splits = read_splits(spec, config, merge_val=True)
    return _with_hold_out(splits, fraction, seed) if fraction else splits


def read_splits(
    spec: str | os.PathLike[str], config: DataConfig, merge_val: bool = False, needs_train: bool = True
) -> Splits:
    """The splits that the data itself has; with `merge_val` its val split is a part of train.

    Without `needs_train` the data may be a test split alone; train then has no images.
    """
    found = read_source(str(spec), config)
    lacks_train = _check_there_is_train(found, str(spec), needs_train)
    if merge_val and "val" in found.splits:
        n = len(found.splits["val"])
        found.splits["train"] = concat_splits([found.splits["train"], found.splits.pop("val")])
        found.notes.append(f"The data's own val split ({n:,} images) is a part of train here.")
    _settle_labels(found)
    names = _class_names(found)
    _check_labels_known(found, names)
    groups = _group_codes(found)
    made = {split: _dataset(found, split, names, groups.get(split)) for split in found.splits}
    return Splits(
        train=made["train"].take([]) if lacks_train else made["train"],
        val=made.get("val"),
        pool=made.get("pool"),
        notes=found.notes,
        bad=found.bad,
        hidden_test=made.get("test"),
    )


def require_labels(splits: Splits) -> None:
    """For what cannot do without: raises unless train has labels and two classes."""
    train = splits.train
    if train.task == "none":
        raise UserError(
            f"{_in_words(train)} has no labels. Put the images into a folder a class, or name a CSV with a label "
            "column; images without labels serve for `vitling pretrain --method idmm`."
        )
    there = [train.class_names[c] for c in sorted(_classes(train))]
    if len(there) < 2:
        has = f'images of one class only, "{there[0]}"' if there else "no image with a class"
        raise UserError(
            f"{_in_words(train)} has {has}. A classifier needs two classes: name the folder that holds the class "
            "folders; `vitling pretrain --method idmm` needs no classes."
        )


def _in_words(split: Dataset) -> str:
    """`train of photos`: a folder photos/train need not be there."""
    where, _, name = split.name.rpartition("/")
    return f"{name} of {where}" if where else name


def drop_bad(
    dataset: Dataset, facts: ImageFacts, allow_bad: bool, split: str = "train", known: Sequence[BadFile] = ()
) -> tuple[Dataset, list[BadFile]]:
    """The images that could be decoded, and the others with their reasons.

    More than 1 % bad, or a class of train left with no image, raises unless `allow_bad`. `known` are files that were
    bad before decoding (`Splits.bad`): those of this split count as well.
    """
    bad = [BadFile(dataset.keys[i], reason, split) for i, reason in facts.reasons.items()]
    everything_bad = [file for file in known if file.split == split] + bad
    total = len(dataset) + len(everything_bad) - len(bad)
    if not everything_bad:
        return dataset, []
    listed = shorten_list([f"{file.key}: {file.reason}" for file in everything_bad])
    count = f"{len(everything_bad):,} of {total:,} images in {split} cannot be used"
    if not facts.ok.any():
        raise UserError(f"{count}, so none is left ({listed}).")
    kept = dataset.take(np.flatnonzero(facts.ok))
    if not allow_bad:
        mend = "Mend or remove them, or pass --allow-bad to go on without them."
        if len(everything_bad) > MAX_BAD_FRACTION * total:
            raise UserError(f"{count} ({len(everything_bad) / total:.1%}; up to 1 % is let pass): {listed}. {mend}")
        if split == "train" and (lost := _classes(dataset) - _classes(kept)):
            names = shorten_list([dataset.class_names[c] for c in sorted(lost)])
            raise UserError(f"{count}, and no image is left of {names}: {listed}. {mend}")
    return kept, bad


def _classes(dataset: Dataset) -> set[int]:
    if dataset.labels is None:
        return set()
    return set((dataset.labels if dataset.labels.ndim == 1 else dataset.labels.nonzero()[1]).tolist())


def _fraction(val: str) -> float:
    if val == "none":
        return 0.0
    try:
        fraction = float(val)
    except ValueError:
        fraction = -1.0
    if not 0 < fraction < 1:
        raise UserError(f"--val {val}: give none, or a fraction between 0 and 1 such as 0.2.")
    return fraction


def _with_hold_out(splits: Splits, fraction: float, seed: int) -> Splits:
    train = splits.train
    held = hold_out(train.labels, train.groups, len(train), fraction, seed)
    if len(_classes(train)) == 1:
        require_labels(splits)
    if not held.any() or held.all():
        raise UserError(
            f"{_in_words(train)} has too few images or groups to hold out {fraction:.0%} of them. Pass --val none to "
            "train on everything, or --val 0.5."
        )
    how = [word for word, true in (("by class", train.task != "none"), ("by group", train.groups is not None)) if true]
    splits.notes.append(
        f"{held.sum():,} of {len(train):,} train images are held out as val"
        f"{' (' + ' and '.join(how) + ')' if how else ''}, seed {seed}."
    )
    return _parted(splits, held)


def _fold(spec: str | os.PathLike[str], config: DataConfig, val: str | None, seed: int) -> Splits:
    if val is not None:
        raise UserError("Folds give the val split themselves: leave out --val, or --data.folds.")
    if config.folds < 2 or not 0 <= config.fold < config.folds:
        raise UserError(f"Fold {config.fold} of {config.folds}: take 2 folds or more, and count the fold from 0.")
    splits = read_splits(spec, config, merge_val=True)
    train = splits.train
    folds = assign_folds(train.labels, train.groups, len(train), config.folds, seed)
    held = folds == config.fold
    if not held.any() or held.all():
        raise UserError(f"{_in_words(train)} has too few images or groups for {config.folds} folds. Take fewer.")
    splits.notes.append(f"Fold {config.fold} of {config.folds}: {held.sum():,} of {len(train):,} train images are val.")
    if fixed := int((folds < 0).sum()):
        splits.notes.append(f"{fixed:,} images are in train in every fold, and never val: their class has no others.")
    return _parted(splits, held)


def _parted(splits: Splits, held: np.ndarray) -> Splits:
    train = splits.train
    val = train.take(np.flatnonzero(held), train.name.removesuffix("train") + "val")
    return replace(splits, train=train.take(np.flatnonzero(~held)), val=val)


def _check_there_is_train(found: Source, spec: str, needed: bool) -> bool:
    """Whether there is none, where that is allowed: the other parts then stand in for it, to say what classes are."""
    found.splits = {split: part for split, part in found.splits.items() if len(part)}
    if not found.splits:
        why = " ".join(found.notes) or "Name the folder that holds the images, or the folders of the classes."
        raise UserError(f"{spec} has no images. {why}")
    if set(found.splits) == {"pool"}:
        found.splits["train"] = found.splits.pop("pool")
    if "train" in found.splits:
        return False
    if needed:
        has = " and ".join(sorted(found.splits))
        raise UserError(f"{spec} has only {has}, and nothing to train on. Add train/, or say {NAMED}.")
    found.splits["train"] = concat_splits([part for split, part in found.splits.items() if split != "pool"])
    return True


def _settle_labels(found: Source) -> None:
    """Train says whether there are labels at all."""
    train = found.splits["train"]
    for split in ("val", "test"):
        part = found.splits.get(split)
        if part is None or (part.labels is None) == (train.labels is None):
            continue
        if train.labels is None:
            part.labels = None
            found.notes.append(f"Train has no labels, so those of {split} are not used.")
        elif split == "val":
            del found.splits["val"]
            found.notes.append("The val split has no labels and is left out.")
        else:
            found.notes.append("The test split has no labels.")
    if "pool" in found.splits:
        found.splits["pool"].labels = None


def _class_names(found: Source) -> tuple[str, ...]:
    train = found.splits["train"]
    if train.labels is None:
        return ()
    there = {name for words in train.labels for name in words}
    names = found.class_order or tuple(sorted(there))
    if empty := [name for name in names if name not in there]:
        found.notes.append(f"Classes without an image in train: {shorten_list(empty)}.")
    return tuple(names)


def _check_labels_known(found: Source, names: tuple[str, ...]) -> None:
    train = found.splits["train"].labels or []
    there = {name for words in train for name in words}
    for split in ("val", "test"):
        part = found.splits.get(split)
        if part is None or part.labels is None:
            continue
        unknown = sorted({name for words in part.labels for name in words} - there)
        if unknown:
            raise UserError(
                f"{split} has labels that train lacks: {shorten_list(unknown)}. Train knows "
                f"{shorten_list(list(names), 3)}. Add images of them to train, or take them out of {split}."
            )


def _group_codes(found: Source) -> dict[str, np.ndarray]:
    """Numbers for group names, the same in all splits; an image without a group is alone in its own."""
    codes: dict[str, int] = {}
    made = {}
    for split, part in found.splits.items():
        if part.groups is not None:
            named = [group or f"\0{split}{i}" for i, group in enumerate(part.groups)]
            made[split] = np.array([codes.setdefault(group, len(codes)) for group in named], np.int64)
    for split in ("val", "test"):
        if "train" in made and split in made and (shared := len(np.intersect1d(made["train"], made[split]))):
            found.notes.append(f"{shared:,} groups are in train and in {split} as well.")
    return made


def _dataset(found: Source, split: str, names: tuple[str, ...], groups: np.ndarray | None) -> Dataset:
    part = found.splits[split]
    labels = None if part.labels is None else _numbers(part, names, found.multi)
    return Dataset(
        name=f"{found.name}/{split}",
        keys=part.keys,
        reader=part.reader,
        rows=part.rows,
        labels=labels,
        class_names=names if split != "pool" else (),
        groups=groups,
    )


def _numbers(part: SourceSplit, names: tuple[str, ...], multi: bool) -> np.ndarray:
    number = {name: c for c, name in enumerate(names)}
    words = part.labels or []
    if not multi:
        return np.array([number[name] for (name,) in words], np.int64)
    labels = np.zeros((len(words), len(names)), bool)
    for i, row in enumerate(words):
        labels[i, [number[name] for name in row]] = True
    return labels
