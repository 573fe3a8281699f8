"""Figures of annotations for `vitling inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitling.data.annotations.split import AnnotatedSplit, Problem, count_problems

Range = tuple[float, float, float]  # smallest, median, largest


@dataclass
class AnnotationSummary:
    """Figures of one split."""

    kind: str
    classes: dict[str, int]  # instances, or pixels in semantic masks
    empty: int  # images without an instance or without a pixel of a class
    instances: int | None
    crowds: int
    per_image: Range | None
    side: Range | None  # square root of the area of instances, in pixels
    ignored: float | None  # fraction of the pixels of semantic masks without a class
    problem_counts: dict[str, int]
    problems: Sequence[Problem]


def summarise_annotations(split: AnnotatedSplit) -> AnnotationSummary:
    assert split.counts is not None
    found, counts = split.instances, split.counts
    pixels = int(split.sizes.prod(axis=1).sum())
    return AnnotationSummary(
        kind="semantic masks" if found is None else "boxes" if found.segments is None else "boxes and masks",
        classes=dict(zip(split.class_names, counts.sum(axis=0).tolist())),
        empty=int((counts.sum(axis=1) == 0).sum()),
        instances=None if found is None else len(found),
        crowds=0 if found is None else int(found.crowd.sum()),
        per_image=None if found is None else find_range(np.diff(found.offsets)),
        side=None if found is None else find_range(np.sqrt(found.areas)),
        ignored=1 - int(counts.sum()) / pixels if found is None and pixels else None,
        problem_counts=count_problems(split.problems),
        problems=split.problems,
    )


def find_range(values: np.ndarray) -> Range | None:
    if not len(values):
        return None
    smallest, median, largest = (round(float(f(values)), 3) for f in (np.min, np.median, np.max))
    return smallest, median, largest
