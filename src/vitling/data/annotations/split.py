"""One split of annotated images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from vitling.data.annotations.instances import Instances
from vitling.data.dataset import Dataset, concat_readers
from vitling.errors import UserError
from vitling.formatting import shorten_list

IGNORE = 255  # in semantic masks
MaskReader = Callable[[int], np.ndarray]  # id of an image -> uint8 [H, W]; safe to call from several threads
DenseTask = Literal["detect", "segment"]


@dataclass(frozen=True)
class Problem:
    """An annotation or image that is left out, with the reason."""

    file: str
    what: str


@dataclass(frozen=True)
class AnnotatedSplit:
    """Images without labels of their own, and their instances or semantic masks."""

    dataset: Dataset
    class_names: tuple[str, ...]
    sizes: np.ndarray  # int64 [N, 2]: height and width of the upright images, in pixels
    instances: Instances | None = None
    read_mask: MaskReader | None = None  # semantic masks of the size of the image, IGNORE for pixels without a class
    counts: np.ndarray | None = None  # int64 [N, K]: instances of each class, or pixels in semantic masks
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()  # decisions to show the user

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, ids: np.ndarray | Sequence[int], name: str | None = None) -> AnnotatedSplit:
        """Select images by id; they get the new ids 0..len(ids)-1."""
        ids = np.asarray(ids, dtype=np.int64)
        return replace(
            self,
            dataset=self.dataset.take(ids, name),
            sizes=self.sizes[ids],
            instances=None if self.instances is None else self.instances.take(ids),
            read_mask=None if self.read_mask is None else _Selection(self.read_mask, ids),
            counts=None if self.counts is None else self.counts[ids],
        )


def merge_splits(first: AnnotatedSplit, second: AnnotatedSplit) -> AnnotatedSplit:
    """Append the images of a split with the same classes; those of the first keep their ids."""
    n = len(first)
    reader, rows = concat_readers([(split.dataset.reader, split.dataset.rows) for split in (first, second)])
    keys = [*first.dataset.keys, *second.dataset.keys]
    read_first, read_second = first.read_mask, second.read_mask
    ours, theirs = first.instances, second.instances  # may be empty, and then false
    return replace(
        first,
        dataset=replace(first.dataset, keys=keys, reader=reader, rows=rows),
        sizes=np.concatenate([first.sizes, second.sizes]),
        instances=None if ours is None or theirs is None else ours.append(theirs),
        read_mask=read_first and read_second and (lambda i: read_first(i) if i < n else read_second(i - n)),
        counts=None if first.counts is None or second.counts is None else np.concatenate([first.counts, second.counts]),
        problems=(*first.problems, *second.problems),
        notes=(*first.notes, f"The val split of the data ({len(second):,} images) is used as part of train."),
    )


class _Selection:
    """Reader of the masks of selected images."""

    def __init__(self, read_mask: MaskReader, ids: np.ndarray):
        self.read_mask, self.ids = read_mask, ids

    def __call__(self, i: int) -> np.ndarray:
        return self.read_mask(int(self.ids[i]))


def count_values(mask: np.ndarray) -> np.ndarray:
    """Count how many pixels of a mask, uint8, have each value: int64 [256]. np.bincount takes 8 bytes per pixel."""
    return np.array(Image.fromarray(mask).histogram(), np.int64)


def compare_classes(source: str, found: Sequence[str], expected: Sequence[str]) -> tuple[str, ...]:
    """Note classes of the data that are not expected; raise UserError if none of them is."""
    other = [name for name in found if name not in expected]
    if not other:
        return ()
    known = f"expected: {shorten_list(expected)}"
    if len(other) == len(found):
        raise UserError(f"{source} has only other classes: {shorten_list(other)}; {known}. Rename them to agree.")
    return (f"Classes of {source} that are left out: {shorten_list(other)}; {known}.",)


def count_problems(problems: Sequence[Problem]) -> dict[str, int]:
    """Count the problems of each kind; details after a colon do not make a new kind."""
    return dict(Counter(problem.what.partition(":")[0] for problem in problems).most_common())
