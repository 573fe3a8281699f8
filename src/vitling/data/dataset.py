"""What every source gives: images to decode, labels, class names, groups, and a stable id for each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vitling.errors import UserError

Task = Literal["none", "single", "multi"]
Raw = bytes | np.ndarray  # an encoded file, or pixels [H, W, C] (uint8 or uint16)
Reader = Callable[[int], Raw]  # row of the source -> raw image; safe to call from several threads
UNLABELLED = -1  # in `partial_labels`


@dataclass(frozen=True)
class BadFile:
    """An image that was left out, and why, in words."""

    key: str
    reason: str
    split: str = "train"


@dataclass(frozen=True)
class Dataset:
    """A split: N images under the ids 0..N-1.

    `labels` is int64 [N] (one class an image), bool [N, C] (several), or None. `rows[i]` is where the reader finds
    image i, so a part of a data set shares its reader.

    Where only some images have a class, `labels` is None and `partial_labels` int64 [N], UNLABELLED for the others:
    what trains on classes, weighs or counts them asks for `labels`, and never meets an image without one.
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
        """Of some images at least."""
        return self.labels is not None or self.partial_labels is not None

    @property
    def task(self) -> Task:
        if self.labels is None:
            return "none"
        return "single" if self.labels.ndim == 1 else "multi"

    def read(self, i: int) -> Raw:
        return self.reader(int(self.rows[i]))

    def take(self, ids: np.ndarray | Sequence[int], name: str | None = None) -> Dataset:
        """The images with these ids, under new ids 0..len(ids)-1."""
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
        """`n` images drawn without replacement; `balanced` takes the classes in turn, so counts differ by one at most
        (a class that runs out is passed over)."""
        if not 0 < n <= len(self):
            raise UserError(f"A subset of {n} images was asked for; {self.name} has {len(self)}.")
        if not balanced:
            return self.take(np.sort(np.random.default_rng(seed).permutation(len(self))[:n]))
        if self.labels is None or self.labels.ndim != 1:
            raise UserError("A balanced subset needs one class per image.")
        return self.take(np.sort(interleave_classes(self.labels, seed)[:n]))


def interleave_classes(labels: np.ndarray, seed: int) -> np.ndarray:
    """All ids, drawn in an order in which the classes take turns."""
    order = np.random.default_rng(seed).permutation(len(labels))
    place = np.empty(len(labels), dtype=np.int64)  # within its own class
    for c in np.unique(labels):
        place[labels[order] == c] = np.arange((labels == c).sum())
    return order[np.argsort(place, kind="stable")]


def merge_unlabelled(first: Dataset, unlabelled: Dataset) -> Dataset:
    """Both. The images of the first keep their ids and groups and, where they have one class each, their classes as
    `partial_labels`."""

    def read(row: int) -> Raw:
        return first.read(row) if row < len(first) else unlabelled.read(row - len(first))

    both = Dataset(
        name=f"{first.name} and {unlabelled.name}",
        keys=[*first.keys, *unlabelled.keys],
        reader=read,
        rows=np.arange(len(first) + len(unlabelled)),
        groups=_joined_groups(first, unlabelled),
    )
    if first.labels is None or first.labels.ndim != 1:
        return both
    labels = np.concatenate([first.labels, np.full(len(unlabelled), UNLABELLED)])
    return replace(both, class_names=first.class_names, partial_labels=labels)


def _joined_groups(first: Dataset, second: Dataset) -> np.ndarray | None:
    """Numbers of groups are the same in all splits; an image without one is alone in its own."""
    known = [part.groups for part in (first, second) if part.groups is not None]
    if not known:
        return None
    free = max(int(groups.max(initial=-1)) for groups in known) + 1
    made = [free + np.arange(len(part)) if part.groups is None else part.groups for part in (first, second)]
    return np.concatenate(made)


@dataclass
class Splits:
    """The parts of a data set. The test part is behind `open_test`, so that every opening leaves a trace."""

    train: Dataset
    val: Dataset | None = None
    pool: Dataset | None = None  # unlabelled images beside the labelled ones
    notes: list[str] = field(default_factory=list)  # what was decided on the way, in words
    bad: list[BadFile] = field(default_factory=list)  # rows that cannot be used, known before decoding
    hidden_test: Dataset | None = None
    on_test_opened: Callable[[str], None] = lambda why: None

    @property
    def has_test(self) -> bool:
        return self.hidden_test is not None

    def open_test(self, why: str) -> Dataset:
        """The test split; `why` goes into the run's log. Nothing may be chosen on it."""
        if self.hidden_test is None:
            raise UserError(f"{self.train.name} has no test split.")
        self.on_test_opened(why)
        return self.hidden_test
