"""The position of a run, and numbers that depend on it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Position of a run: `step` of `steps`, and the fractional `epoch` of `epochs`.

    After a change of the run's length (`Trainer.change_length`), steps are fractional: `fraction` continues from its
    value and reaches 1 at the new end.
    """

    step: float
    steps: float
    epochs: int

    @property
    def fraction(self) -> float:
        return self.step / self.steps

    @property
    def epoch(self) -> float:
        return self.fraction * self.epochs

    @property
    def epochs_done(self) -> int:
        return int(self.step * self.epochs // self.steps)


Schedule = Callable[[Progress], float]
