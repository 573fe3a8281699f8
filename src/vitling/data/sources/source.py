"""What a source finds: splits of images whose labels are still words."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vitling.data.dataset import BadFile, Raw, Reader

SPLIT_OF = {
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


@dataclass
class SourceSplit:
    """One split. `labels[i]` are the names of image i's classes; None: no image has a label."""

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
    """A data set as found: splits under train, val, test, pool. `class_order` where the source itself orders them."""

    name: str
    splits: dict[str, SourceSplit] = field(default_factory=dict)
    class_order: tuple[str, ...] | None = None
    multi: bool = False  # an image may have several labels, or none of those there are
    notes: list[str] = field(default_factory=list)
    bad: list[BadFile] = field(default_factory=list)


class JoinedReader:
    """Several readers behind one: the rows of each follow those of the one before."""

    def __init__(self, readers: Sequence[Reader], starts: Sequence[int]):
        self.readers, self.starts = list(readers), list(starts)

    def __call__(self, row: int) -> Raw:
        k = bisect_right(self.starts, row) - 1
        return self.readers[k](row - self.starts[k])


def concat_splits(parts: Sequence[SourceSplit]) -> SourceSplit:
    """One part after the other. Labels stay only if all have them."""
    if len(parts) == 1:
        return parts[0]
    sizes = [int(part.rows.max()) + 1 if len(part) else 0 for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    shared = all(part.reader is parts[0].reader for part in parts)
    rows = [part.rows if shared else part.rows + start for part, start in zip(parts, starts)]
    labels = [part.labels for part in parts if part.labels is not None]
    groups = [part.groups or [""] * len(part) for part in parts]
    return SourceSplit(
        keys=[key for part in parts for key in part.keys],
        reader=parts[0].reader if shared else JoinedReader([part.reader for part in parts], starts.tolist()),
        rows=np.concatenate(rows),
        labels=[names for part in labels for names in part] if len(labels) == len(parts) else None,
        groups=[group for part in groups for group in part] if any(part.groups for part in parts) else None,
    )


def drop_empty_labels(found: Source) -> None:
    """A source with a place for labels and none in it has no labels."""
    if not any(any(part.labels) for part in found.splits.values() if part.labels):
        for part in found.splits.values():
            part.labels = None


def separate_unlabelled(found: Source) -> None:
    """Images without a label beside labelled ones: those of train join the pool, those of val and test are bad.

    Where images have several labels, one without is a negative: it has none of those there are.
    """
    if found.multi:
        _keep_negatives(found)
        return
    for split, part in list(found.splits.items()):
        if split == "pool" or part.labels is None or all(part.labels):
            continue
        remove_unlabelled(found, split, [i for i, words in enumerate(part.labels) if not words])


def remove_unlabelled(found: Source, split: str, without: Sequence[int]) -> None:
    """Takes these images, which have no label, out of a split: train's into the pool, others to the bad files."""
    part = found.splits[split]
    if not without or split == "pool":
        return
    if split == "train":
        pool = part.take(without)
        pool.labels = None
        found.splits["pool"] = concat_splits([*([found.splits["pool"]] if "pool" in found.splits else []), pool])
        found.notes.append(f"{len(without):,} images without a label are the unlabelled pool.")
    else:
        found.bad += [BadFile(part.keys[i], "no label", split) for i in without]
    gone = set(without)
    found.splits[split] = part.take([i for i in range(len(part)) if i not in gone])


def _keep_negatives(found: Source) -> None:
    """A split without a single label is not full of negatives, though: its labels are not known."""
    for split, part in found.splits.items():
        if part.labels is None or not any(part.labels):
            part.labels = None
        elif negatives := sum(not words for words in part.labels):
            found.notes.append(
                f"{negatives:,} images of {split} have none of the labels. Images whose labels are not known belong "
                "to the split unlabelled."
            )


def split_from_name(name: str) -> str | None:
    """`cifar100-train-10k.parquet` and `data/test.tar` say which split they hold."""
    for separator in "-_./\\ ":
        name = name.replace(separator, " ")
    found = [SPLIT_OF[word] for word in name.lower().split() if word in SPLIT_OF]
    return found[-1] if found else None


def sort_class_names(names: set[str]) -> tuple[str, ...]:
    """Sorted; whole numbers by value."""
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
