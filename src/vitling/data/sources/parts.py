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
class Part:
    """One split. `labels[i]` are the names of image i's classes; None: no image has a label."""

    keys: list[str]
    reader: Reader
    rows: np.ndarray
    labels: Sequence[tuple[str, ...]] | None = None
    groups: list[str] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, ids: Sequence[int]) -> Part:
        return Part(
            [self.keys[i] for i in ids],
            self.reader,
            self.rows[np.asarray(ids, dtype=np.int64)],
            None if self.labels is None else [self.labels[i] for i in ids],
            None if self.groups is None else [self.groups[i] for i in ids],
        )


@dataclass
class Parts:
    """A data set as found: splits under train, val, test, pool. `class_order` where the source itself orders them."""

    name: str
    parts: dict[str, Part] = field(default_factory=dict)
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


def join(parts: Sequence[Part]) -> Part:
    """One part after the other. Labels stay only if all have them."""
    if len(parts) == 1:
        return parts[0]
    sizes = [int(part.rows.max()) + 1 if len(part) else 0 for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    shared = all(part.reader is parts[0].reader for part in parts)
    rows = [part.rows if shared else part.rows + start for part, start in zip(parts, starts)]
    labels = [part.labels for part in parts if part.labels is not None]
    groups = [part.groups or [""] * len(part) for part in parts]
    return Part(
        keys=[key for part in parts for key in part.keys],
        reader=parts[0].reader if shared else JoinedReader([part.reader for part in parts], starts.tolist()),
        rows=np.concatenate(rows),
        labels=[names for part in labels for names in part] if len(labels) == len(parts) else None,
        groups=[group for part in groups for group in part] if any(part.groups for part in parts) else None,
    )


def set_aside_unlabelled(found: Parts) -> None:
    """Images without a label beside labelled ones: those of train join the pool, those of val and test are bad."""
    if not any(any(part.labels) for part in found.parts.values() if part.labels):
        for part in found.parts.values():
            part.labels = None
        return
    for split, part in list(found.parts.items()):
        if split == "pool" or part.labels is None or all(part.labels):
            continue
        without = [i for i, words in enumerate(part.labels) if not words]
        if split == "train":
            pool = part.take(without)
            pool.labels = None
            found.parts["pool"] = join([*([found.parts["pool"]] if "pool" in found.parts else []), pool])
            found.notes.append(f"{len(without):,} images without a label are the unlabelled pool.")
        else:
            found.bad += [BadFile(part.keys[i], "no label", split) for i in without]
        found.parts[split] = part.take([i for i, words in enumerate(part.labels) if words])


def split_in_name(name: str) -> str | None:
    """`cifar100-train-10k.parquet` and `data/test.tar` say which split they hold."""
    for separator in "-_./\\ ":
        name = name.replace(separator, " ")
    found = [SPLIT_OF[word] for word in name.lower().split() if word in SPLIT_OF]
    return found[-1] if found else None


def in_order(names: set[str]) -> tuple[str, ...]:
    """Sorted; whole numbers by value."""
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def some(words: Sequence[str], most: int = 5) -> str:
    """`a, b, c, d, e and 7 more`"""
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest:,} more" if rest > 0 else "")
