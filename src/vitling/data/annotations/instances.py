"""Instances: the boxes, classes and masks of all images of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitling.data.annotations.rle import RLE, read_runs, sample_mask

CROP_SIDE = 56  # pixels; twice the 28 of Mask R-CNN's mask head


@dataclass(frozen=True)
class Instances:
    """Instances of N images, M in all; those of image i are offsets[i] to offsets[i + 1]."""

    offsets: np.ndarray  # int64 [N + 1]
    boxes: np.ndarray  # float32 [M, 4]: left, top, right, bottom in fractions of the image
    classes: np.ndarray  # int64 [M]
    crowd: np.ndarray  # bool [M]: a group of objects; not trained on, and ignored by AP
    areas: np.ndarray  # float32 [M], pixels
    segments: list[RLE] | None = None  # masks at the size of the original image

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def images(self) -> np.ndarray:
        """Return the image of each instance, int64 [M]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def take(self, ids: np.ndarray | Sequence[int]) -> Instances:
        """Select images by id; they get the new ids 0..len(ids)-1."""
        ids = np.asarray(ids, dtype=np.int64)
        counts = np.diff(self.offsets)[ids]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[ids] - offsets[:-1], counts)
        return Instances(
            offsets,
            self.boxes[rows],
            self.classes[rows],
            self.crowd[rows],
            self.areas[rows],
            None if self.segments is None else [self.segments[i] for i in rows],
        )

    def append(self, other: Instances) -> Instances:
        """Append the images of other instances; masks are kept if all instances have one."""
        missing = any(one.segments is None for one in (self, other) if len(one))
        return Instances(
            np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]]),
            np.concatenate([self.boxes, other.boxes]),
            np.concatenate([self.classes, other.classes]),
            np.concatenate([self.crowd, other.crowd]),
            np.concatenate([self.areas, other.areas]),
            None if missing else [*(self.segments or ()), *(other.segments or ())],
        )

    def crop_masks(self, side: int = CROP_SIDE) -> np.ndarray:
        """Sample each mask inside its own box at the centres of side x side cells: uint8 [M, side, side] of 0 and 1."""
        if self.segments is None:
            raise ValueError("these instances have no masks")
        crops = np.zeros((len(self), side, side), np.uint8)
        sizes = np.array([rle["size"] for rle in self.segments], np.int64).reshape(-1, 2)
        start, stop = self.boxes[:, None, :2].astype(np.float64), self.boxes[:, None, 2:].astype(np.float64)
        centres = start + (np.arange(side)[:, None] + 0.5) / side * (stop - start)  # [M, side, (x, y)]
        limits = sizes[:, None, ::-1]
        pixels = np.clip((centres * limits).astype(np.int64), 0, limits - 1)
        for crop, place, rle in zip(crops, pixels, self.segments):
            crop[:] = sample_mask(read_runs(rle), rle["size"][0], place[:, 0], place[:, 1])
        return crops
