"""Semantic masks painted from instances, for data that has polygons or instance masks only."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from vitling.data.annotations.build import LeftOut, map_files
from vitling.data.annotations.instances import Instances
from vitling.data.annotations.rle import decode_mask
from vitling.data.annotations.split import IGNORE, AnnotatedSplit
from vitling.errors import UserError

BACKGROUND = "background"


class Painter:
    """Reader of semantic masks: 0 for the background, class + 1 for instances, small ones over large ones.

    The rest of the boxes of annotations that are left out is IGNORE: it shows something, but what is unknown.
    """

    def __init__(self, instances: Instances, sizes: np.ndarray, left_out: LeftOut):
        self.instances, self.sizes, self.left_out = instances, sizes, left_out

    def __call__(self, i: int) -> np.ndarray:
        segments = self.instances.segments or []
        mask = np.zeros(self.sizes[i], np.uint8)
        for left, top, right, bottom in self.left_out.get(i, ()):
            mask[int(top) : math.ceil(bottom), int(left) : math.ceil(right)] = IGNORE
        rows = np.arange(self.instances.offsets[i], self.instances.offsets[i + 1])
        for k in rows[np.argsort(-self.instances.areas[rows], kind="stable")]:
            mask[decode_mask(segments[k]) > 0] = self.instances.classes[k] + 1
        return mask


def paint_instances(split: AnnotatedSplit, left_out: LeftOut) -> AnnotatedSplit:
    """Turn instances into semantic masks, with a class for the background before the others."""
    instances = split.instances
    assert instances is not None
    if instances.segments is None and len(instances):
        raise UserError(f"{split.dataset.name} has boxes but no masks or polygons; use `vitling detect`.")
    names = (BACKGROUND, *split.class_names)
    if len(names) > IGNORE:
        raise UserError(f"{split.dataset.name} has {len(names)} classes; up to {IGNORE} are supported in masks.")
    painter = Painter(instances, split.sizes, left_out)

    def count(i: int) -> np.ndarray:
        return np.bincount(painter(i).ravel(), minlength=len(names))[: len(names)]

    counts = np.array(map_files(count, range(len(split))), np.int64).reshape(-1, len(names))
    return replace(split, class_names=names, instances=None, read_mask=painter, counts=counts)
