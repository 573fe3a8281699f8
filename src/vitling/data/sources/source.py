"""Source: the splits of a dataset as read, with labels that are still words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from vitling.data.dataset import BadFile, Reader, concat_readers
from vitling.formatting import format_count
from vitling.loading import MAX_DIGITS

SPLIT_OF = {  # words in names of folders, files and arrays
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
    "unlabelled": "pool",
    "unlabeled": "pool",
}
IMAGE_SUFFIXES = frozenset(
    [".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm", ".pnm"]
)


UNREAD_SUFFIXES = frozenset(  # photos and scans that Pillow does not open
    [".heic", ".heif", ".avif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2", ".psd", ".dcm"]
)


@dataclass
class SourceSplit:
    """One split. `labels[i]` holds the class names of image i; None means that no image has a label."""

    keys: list[str]
    reader: Reader
    rows: np.ndarray
    labels: Sequence[tuple[str, ...]] | None = None
    groups: list[str] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, ids: Sequence[int]) -> SourceSplit:
        return SourceSplit(
            [self.keys[i] for i in ids],
            self.reader,
            self.rows[np.asarray(ids, dtype=np.int64)],
            None if self.labels is None else [self.labels[i] for i in ids],
            None if self.groups is None else [self.groups[i] for i in ids],
        )


@dataclass
class Source:
    """Dataset as read: splits named train, val, test, pool. `class_order` is set if the source orders its classes."""

    name: str
    splits: dict[str, SourceSplit] = field(default_factory=dict)
    class_order: tuple[str, ...] | None = None
    multi: bool = False  # multi-label: an image may have several labels, or none
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)

    def copy(self) -> Source:
        """Copy what `read_splits` changes, so that one source can be split in several ways."""
        splits = {name: replace(split) for name, split in self.splits.items()}
        return replace(self, splits=splits, notes=list(self.notes), warnings=list(self.warnings), bad=list(self.bad))


def concat_splits(splits: Sequence[SourceSplit]) -> SourceSplit:
    """Concatenate splits. Labels are kept only if all have them."""
    if len(splits) == 1:
        return splits[0]
    reader, rows = concat_readers([(split.reader, split.rows) for split in splits])
    labels = [split.labels for split in splits if split.labels is not None]
    groups = [split.groups or [""] * len(split) for split in splits]
    return SourceSplit(
        keys=[key for split in splits for key in split.keys],
        reader=reader,
        rows=rows,
        labels=list(chain.from_iterable(labels)) if len(labels) == len(splits) else None,
        groups=list(chain.from_iterable(groups)) if any(split.groups for split in splits) else None,
    )


def drop_empty_labels(source: Source) -> None:
    """Set all labels to None if no image has any."""
    if not any(any(split.labels) for split in source.splits.values() if split.labels):
        for split in source.splits.values():
            split.labels = None


def separate_unlabelled(source: Source) -> None:
    """Remove unlabelled images from labelled splits: those of train join the pool, those of val and test are bad.

    In multi-label data an image without a label is a negative and stays.
    """
    if source.multi:
        _keep_negatives(source)
        return
    for name, split in list(source.splits.items()):
        if name != "pool" and split.labels is not None:
            remove_unlabelled(source, name, [i for i, words in enumerate(split.labels) if not words])


def remove_unlabelled(source: Source, name: str, ids: Sequence[int]) -> None:
    """Move these images out of a split: from train into the pool, from others to the bad files."""
    split = source.splits[name]
    if not ids or name == "pool":
        return
    if name == "train":
        unlabelled = split.take(ids)
        unlabelled.labels = None
        pool = [source.splits["pool"]] if "pool" in source.splits else []
        source.splits["pool"] = concat_splits([*pool, unlabelled])
        source.notes.append(f"Added to the unlabelled pool: {format_count(len(ids), 'image')} without a label.")
    else:
        source.bad += [BadFile(split.keys[i], "no label", name) for i in ids]
    removed = set(ids)
    source.splits[name] = split.take([i for i in range(len(split)) if i not in removed])


def _keep_negatives(source: Source) -> None:
    """Keep images without a label as negatives, unless the whole split has none: then its labels are unknown."""
    for name, split in source.splits.items():
        if split.labels is None or not any(split.labels):
            split.labels = None
        elif negatives := sum(not words for words in split.labels):
            source.notes.append(
                f"Negatives (no label) in {name}: {format_count(negatives, 'image')}. If their labels are unknown, put "
                "them into the split unlabelled."
            )


def find_split_in_name(name: str) -> str | None:
    """Find the split in a file name such as `cifar100-train-10k.parquet` or `data/test.tar`."""
    for separator in "-_./\\ ":
        name = name.replace(separator, " ")
    found = [SPLIT_OF[word] for word in name.lower().split() if word in SPLIT_OF]
    return found[-1] if found else None


def sort_class_names(names: set[str]) -> tuple[str, ...]:
    """Sort class names, whole numbers by value."""
    if all(name.isdecimal() and len(name) <= MAX_DIGITS for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
