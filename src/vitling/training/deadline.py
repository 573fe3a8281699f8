"""The deadline of a run with --minutes: while it trains, its number of epochs follows the pace.

The pace is measured before the first step, when another program may be using the machine, or have just stopped doing
so. A run that turns out much too short or too long is given other epochs. On a machine whose pace does not change, none
are.
"""

from __future__ import annotations

import time

import torch

from vitling.training.pace import synchronise
from vitling.training.trainer import Trainer

_CHECKS = 40  # per run
_LEAST_SECONDS = 2.0  # between two checks
_UNUSED = 0.2  # of the run's time; a run that would leave more of it gets more epochs
_OVERDUE, _OVERDUE_LATER = 0.03, 0.25  # of the run's time, and of the time left, in which it may become faster again
_NEWEST = 0.25  # weight of the newest measurement in the average pace
_RESERVE = 0.04  # of the run's time, left over by a change
_LAST_START = 0.9  # of the schedule; later epochs hardly learn, so none are added


class Deadline:
    """Time that a run may take, and the most epochs that it may have."""

    def __init__(self, seconds: float, max_epochs: int):
        self.seconds, self.max_epochs = max(seconds, 0.0), max_epochs
        self.end = time.monotonic() + self.seconds
        self.next_check, self.compiling = 0, 0.0
        self.since: tuple[float, int] | None = None  # time and step at which the present measurement began
        self.pace: float | None = None  # steps per second, a moving average: other programs work in bursts

    def share(self, part: float, epochs: float) -> Deadline:
        """Return a deadline for a part of the run that is trained now, with this share of its epochs."""
        return Deadline(part * max(self.end - time.monotonic(), 0.0), max(1, round(epochs * self.max_epochs)))

    def choose_epochs(self, trainer: Trainer) -> int | None:
        """Return the number of epochs that fits, or None if the present one does. Call it after each step.

        The first measurement is not used: the first steps are often slow. One in which a step was compiled is not used
        either.
        """
        if trainer.done < self.next_check or trainer.done >= trainer.steps:
            return None
        synchronise(trainer.store.device)
        now, first = time.monotonic(), self.since is None
        began, step = self.since or (now, trainer.done)
        seconds = self._average(trainer, now - began)
        if not first and seconds < _LEAST_SECONDS:
            self._wait(trainer)
            return None
        compiled, self.compiling = trainer.seconds_compiling != self.compiling, trainer.seconds_compiling
        self.since = now, trainer.done
        self._wait(trainer)
        if first or trainer.processes.any(int(compiled)):
            return None
        measured = (trainer.done - step) / seconds
        self.pace = measured if self.pace is None else (1 - _NEWEST) * self.pace + _NEWEST * measured
        return self._fit(trainer, self.pace, self._average(trainer, self.end - now))

    def _fit(self, trainer: Trainer, pace: float, left: float) -> int | None:
        unused = left - (trainer.steps - trainer.done) / pace
        too_long = unused < -(_OVERDUE * self.seconds + _OVERDUE_LATER * max(left, 0.0))
        too_short = unused > _UNUSED * self.seconds and trainer.progress().fraction <= _LAST_START
        if not too_long and not too_short:
            return None
        steps = trainer.done + (left - _RESERVE * self.seconds) * pace
        current = trainer.done // trainer.per_epoch + 1  # an epoch that has begun, or the next one, is finished
        epochs = max(current, min(int(steps / trainer.per_epoch), max(self.max_epochs, trainer.epochs)))
        return epochs if epochs != trainer.epochs else None

    def _wait(self, trainer: Trainer) -> None:
        self.next_check = trainer.done + max(1, trainer.steps // _CHECKS)

    def _average(self, trainer: Trainer, seconds: float) -> float:
        """Average over the processes, so that all take the same decision."""
        return float(trainer.processes.mean(torch.tensor(seconds, device=trainer.processes.device)))
