"""Semantic masks painted from instances, for data that has polygons or instance masks only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitling.data.annotations.build import LeftOut, map_files
from vitling.data.annotations.instances import Instances
from vitling.data.annotations.rle import find_spans, read_runs
from vitling.data.annotations.split import IGNORE, AnnotatedSplit, count_values
from vitling.data.config import MAX_PIXELS
from vitling.errors import UserError

BACKGROUND = "background"
MAX_PAINTED = 40 * MAX_PIXELS  # pixels of one image, each counted as often as it is painted


class Painter:
    """Reader of semantic masks: 0 for the background, class + 1 for instances, small ones over large ones.

    Where only boxes of left-out annotations lie, the mask is IGNORE: something is there, but its class is unknown.
    """

    def __init__(self, names: Sequence[str], instances: Instances, sizes: np.ndarray, left_out: LeftOut):
        self.names, self.instances, self.sizes, self.left_out = names, instances, sizes, left_out

    def __call__(self, i: int) -> np.ndarray:
        segments = self.instances.segments or []
        height, width = self.sizes[i]
        mask = np.zeros((width, height), np.uint8)  # column by column, as the runs of a segment
        painted = 0
        for left, top, right, bottom in self.left_out.get(i, ()):
            part = mask[int(left) : math.ceil(right), int(top) : math.ceil(bottom)]
            painted = self._check_work(i, painted + part.size)
            part[:] = IGNORE
        pixels = mask.reshape(-1)
        rows = np.arange(self.instances.offsets[i], self.instances.offsets[i + 1])
        for k in rows[np.argsort(-self.instances.areas[rows], kind="stable")]:
            starts, stops = find_spans(read_runs(segments[k]))
            painted = self._check_work(i, painted + int((stops - starts).sum()))
            for start, stop in zip(starts.tolist(), stops.tolist()):
                pixels[start:stop] = self.instances.classes[k] + 1
        return mask.T

    def _check_work(self, i: int, painted: int) -> int:
        """Return the number of painted pixels; raise UserError if they are too many for one image."""
        if painted > MAX_PAINTED:
            raise UserError(
                f"{self.names[i]}: its annotations overlap too often; together they cover more than {MAX_PAINTED:,} "
                "pixels. Remove those that are repeated, or cut the image into tiles."
            )
        return painted


def paint_instances(split: AnnotatedSplit, left_out: LeftOut) -> AnnotatedSplit:
    """Turn instances into semantic masks, with a class for the background before the others."""
    instances = split.instances
    assert instances is not None
    if instances.segments is None and len(instances):
        raise UserError(f"{split.dataset.name} has boxes but no masks or polygons; use `vitling detect`.")
    names = (BACKGROUND, *split.class_names)
    if len(names) > IGNORE:
        raise UserError(f"{split.dataset.name} has {len(names)} classes; up to {IGNORE} are supported in masks.")
    painter = Painter(split.dataset.keys, instances, split.sizes, left_out)

    def count(i: int) -> np.ndarray:
        return count_values(painter(i).T)[: len(names)]

    found = map_files(count, range(len(split)))
    if errors := [counts for counts in found if isinstance(counts, Exception)]:
        raise errors[0]
    counts = np.array(found, np.int64).reshape(-1, len(names))
    return replace(split, class_names=names, instances=None, read_mask=painter, counts=counts)
