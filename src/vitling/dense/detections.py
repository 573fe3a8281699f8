"""Detections: what a detector finds in one image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitling.data.annotations.rle import RLE


@dataclass
class Detections:
    """Detections in one image, in pixels of the original; any order."""

    boxes: np.ndarray  # float [n, 4]: left, top, right, bottom
    scores: np.ndarray  # float [n]
    classes: np.ndarray  # int [n]
    masks: list[RLE] | None = None

    def __len__(self) -> int:
        return len(self.scores)
