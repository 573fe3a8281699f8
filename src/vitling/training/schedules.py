"""Numbers that change over a run, as functions of where the run stands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a run stands: `step` of `steps`, `epoch` (with its fraction) of `epochs`."""

    step: int
    steps: int
    epochs: int

    @property
    def fraction(self) -> float:
        return self.step / self.steps

    @property
    def epoch(self) -> float:
        return self.fraction * self.epochs


Schedule = Callable[[Progress], float]


def warmup_cosine(peak: float, floor: float, warmup_epochs: float) -> Schedule:
    """Linear from 0 to `peak`, then half a cosine down to `floor` at the end of the run. Step 0 already moves."""

    def value(progress: Progress) -> float:
        per_epoch = progress.steps / progress.epochs
        warmup = min(warmup_epochs * per_epoch, progress.steps - 1)
        if progress.step < warmup:
            return peak * (progress.step + 1) / (warmup + 1)
        done = (progress.step - warmup) / max(progress.steps - warmup, 1)
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return value


def cosine(start: float, end: float) -> Schedule:
    return lambda progress: end + (start - end) * 0.5 * (1 + math.cos(math.pi * progress.fraction))
