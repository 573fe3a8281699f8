"""Datasets: images to decode, labels, class names, groups, and a stable id for each image."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vitling.errors import UserError

Task = Literal["none", "single", "multi"]
Raw = bytes | np.ndarray  # an encoded file, or pixels [H, W, C] (uint8 or uint16)
Reader = Callable[[int], Raw]  # row of the source -> raw image; safe to call from several threads
UNLABELLED = -1  # in `partial_labels`


def sample_evenly(total: int, limit: int) -> np.ndarray:
    """Choose at most `limit` evenly spaced ids of 0..total-1, so that images sorted by class come from all classes."""
    return np.linspace(0, total - 1, min(total, limit)).astype(np.int64)


@dataclass(frozen=True)
class BadFile:
    """A skipped image, with the reason."""

    key: str
    reason: str
    split: str = "train"


@dataclass(frozen=True)
class Dataset:
    """One split: N images with the ids 0..N-1.

    `labels` is int64 [N] (one class per image), bool [N, C] (multi-label), or None. The reader finds image i at
    `rows[i]`, so subsets share the reader of the whole.

    If only some images have a class, `labels` is None and `partial_labels` is int64 [N] with UNLABELLED for the rest:
    code that trains on, weighs or counts classes uses `labels` and never meets an unlabelled image.
    """

    name: str
    keys: Sequence[str]
    reader: Reader
    rows: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    partial_labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def has_labels(self) -> bool:
        """Return whether at least some images have a label."""
        return self.labels is not None or self.partial_labels is not None

    @property
    def task(self) -> Task:
        if self.labels is None:
            return "none"
        return "single" if self.labels.ndim == 1 else "multi"

    def count_classes(self) -> np.ndarray:
        """Count the images of each class, [C]."""
        if self.labels is None:
            raise ValueError(f"{self.name} has no labels")
        is_multi = self.labels.ndim == 2
        return self.labels.sum(axis=0) if is_multi else np.bincount(self.labels, minlength=len(self.class_names))

    def read(self, i: int) -> Raw:
        return self.reader(int(self.rows[i]))

    def take(self, ids: np.ndarray | Sequence[int], name: str | None = None) -> Dataset:
        """Select images by id; they get the new ids 0..len(ids)-1."""
        ids = np.asarray(ids, dtype=np.int64)
        return replace(
            self,
            name=name or self.name,
            keys=[self.keys[i] for i in ids],
            rows=self.rows[ids],
            labels=None if self.labels is None else self.labels[ids],
            groups=None if self.groups is None else self.groups[ids],
            partial_labels=None if self.partial_labels is None else self.partial_labels[ids],
        )

    def subset(self, n: int, balanced: bool = False, seed: int = 0) -> Dataset:
        """Draw `n` images without replacement; `balanced` takes the classes in turn (skipping those that run out),
        so that their counts differ by at most one."""
        if not 0 < n <= len(self):
            raise UserError(f"Cannot take a subset of {n} images: {self.name} has {len(self)}.")
        if not balanced:
            return self.take(np.sort(np.random.default_rng(seed).permutation(len(self))[:n]))
        if self.labels is None or self.labels.ndim != 1:
            raise UserError("A balanced subset needs one class per image.")
        return self.take(np.sort(interleave_classes(self.labels, seed)[:n]))


def interleave_classes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return all ids in a random order in which the classes take turns."""
    order = np.random.default_rng(seed).permutation(len(labels))
    rank_in_class = np.empty(len(labels), dtype=np.int64)
    for c in np.unique(labels):
        rank_in_class[labels[order] == c] = np.arange((labels == c).sum())
    return order[np.argsort(rank_in_class, kind="stable")]


class ConcatReader:
    """Reader over several readers, whose rows follow one another."""

    def __init__(self, readers: Sequence[Reader], starts: Sequence[int]):
        self.readers, self.starts = list(readers), list(starts)

    def __call__(self, row: int) -> Raw:
        k = bisect_right(self.starts, row) - 1
        return self.readers[k](row - self.starts[k])


def concat_readers(parts: Sequence[tuple[Reader, np.ndarray]]) -> tuple[Reader, np.ndarray]:
    """Join readers and their rows into one reader and its rows; a reader shared by all is returned unchanged."""
    readers, rows = [reader for reader, _ in parts], [some for _, some in parts]
    if all(reader is readers[0] for reader in readers):
        return readers[0], np.concatenate(rows)
    starts = np.cumsum([0, *(int(some.max(initial=-1)) + 1 for some in rows[:-1])]).tolist()
    return ConcatReader(readers, starts), np.concatenate([some + start for some, start in zip(rows, starts)])


def merge_unlabelled(first: Dataset, unlabelled: Dataset) -> Dataset:
    """Append unlabelled images. The first images keep their ids and groups, and single labels as `partial_labels`."""
    reader, rows = concat_readers([(part.reader, part.rows) for part in (first, unlabelled)])
    both = Dataset(
        name=f"{first.name} and {unlabelled.name}",
        keys=[*first.keys, *unlabelled.keys],
        reader=reader,
        rows=rows,
        groups=_merge_groups(first, unlabelled),
    )
    if first.labels is None or first.labels.ndim != 1:
        return both
    labels = np.concatenate([first.labels, np.full(len(unlabelled), UNLABELLED)])
    return replace(both, class_names=first.class_names, partial_labels=labels)


def _merge_groups(first: Dataset, second: Dataset) -> np.ndarray | None:
    """Concatenate the groups, which are numbered across splits; an image without one gets a group of its own."""
    known = [dataset.groups for dataset in (first, second) if dataset.groups is not None]
    if not known:
        return None
    unused = max(int(groups.max(initial=-1)) for groups in known) + 1
    return np.concatenate(
        [unused + np.arange(len(dataset)) if dataset.groups is None else dataset.groups for dataset in (first, second)]
    )


@dataclass
class Splits:
    """The splits of a dataset. The test split is behind `open_test`, so that every use of it is logged."""

    train: Dataset
    val: Dataset | None = None
    pool: Dataset | None = None  # unlabelled images in addition to the labelled ones
    notes: list[str] = field(default_factory=list)  # decisions to show the user
    warnings: list[str] = field(default_factory=list)  # what the user should look at before trusting a result
    bad: list[BadFile] = field(default_factory=list)  # images known to be unusable before decoding
    hidden_test: Dataset | None = None
    on_test_opened: Callable[[str], None] = lambda why: None

    @property
    def has_test(self) -> bool:
        return self.hidden_test is not None

    def open_test(self, why: str) -> Dataset:
        """Return the test split and log `why`. Nothing may be chosen on it."""
        if self.hidden_test is None:
            raise UserError(f"{self.train.name} has no test split.")
        self.on_test_opened(why)
        return self.hidden_test
