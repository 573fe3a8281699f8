"""The interface between the loop and its watchers, which live in other packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vitling.objectives.objective import Objective


@dataclass(frozen=True)
class Moment:
    """The end of an epoch, as watchers see it. The objective holds the weights that would be saved."""

    objective: Objective
    epoch: int  # epochs finished, 1..epochs
    epochs: int
    step: int  # optimiser steps taken
    terms: dict[str, float]  # means over the epoch: the loss, its terms, grad_norm

    @property
    def last(self) -> bool:
        return self.epoch == self.epochs


class Watcher(Protocol):
    """Callable that returns metrics; the loop calls it after every `every` epochs and after the last one."""

    @property
    def every(self) -> int: ...

    def __call__(self, moment: Moment) -> dict[str, float]: ...
