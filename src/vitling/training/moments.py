"""What the loop shows on its way, to watchers, and what it gives in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vitling.objectives.objective import Objective


@dataclass(frozen=True)
class Moment:
    """What a watcher sees at the end of an epoch. The objective carries the weights that would be saved."""

    objective: Objective
    epoch: int  # epochs finished, 1..epochs
    epochs: int
    step: int  # optimiser steps taken
    terms: dict[str, float]  # means of the epoch: the loss, its terms, grad_norm

    @property
    def last(self) -> bool:
        return self.epoch == self.epochs


class Watcher(Protocol):
    """Called after every `every` epochs and after the last one; gives metrics."""

    @property
    def every(self) -> int: ...

    def __call__(self, moment: Moment) -> dict[str, float]: ...


@dataclass
class Best:
    """The weights of the epoch that did best by the metric of `FitConfig.best`."""

    epoch: int
    value: float
    weights: dict[str, Tensor]


@dataclass
class Outcome:
    """The objective is left with the weights of the last epoch (averaged, where an average was kept)."""

    metrics: dict[str, float]  # of the last epoch
    best: Best | None
    steps: int
    seconds: float  # of training, watchers included, over all starts of the run up to the checkpoints between them
    seconds_compiling: float  # of those, in the last start: the first step with each kind of batch
    images_per_second: float  # the fastest pace between two readings: without compilation and without watchers
    accumulate: int
