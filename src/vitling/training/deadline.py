"""The deadline of a run with --minutes: while it trains, its number of epochs follows the pace.

The pace is measured before the first step, when another program may be using the machine, or have just stopped doing
so. A run that would end much too early or too late gets a different number of epochs; at a steady pace the number does
not change.
"""

from __future__ import annotations

import time

import torch

from vitling.training.pace import synchronise
from vitling.training.trainer import Trainer

_CHECKS = 40  # per run
_LEAST_SECONDS = 2.0  # between two checks
_UNUSED = 0.2  # of the run's time; a run that would leave more of it gets more epochs
_OVERDUE = 0.03  # of the run's time; a run that would end later gets fewer epochs ...
_RECOVERY = 0.25  # ... unless it is late by less than this share of the time left: it may become faster again
_NEWEST = 0.25  # weight of the newest measurement in the average pace
_RESERVE = 0.04  # of the run's time, left over by a change
_LAST_START = 0.9  # of the schedule; later epochs hardly learn, so none are added


class Deadline:
    """Time that a run may take, and the most epochs that it may have. With `add_compile_time`, compiling extends it."""

    def __init__(self, seconds: float, max_epochs: int, add_compile_time: bool = False):
        self.seconds, self.max_epochs, self.add_compile_time = max(seconds, 0.0), max_epochs, add_compile_time
        self.end = time.monotonic() + self.seconds
        self.next_check, self.compiling = 0, 0.0
        self.since: tuple[float, int] | None = None  # time and step at which the present measurement began
        self.pace: float | None = None  # steps per second, a moving average: other programs work in bursts

    def share(self, of_time: float, of_epochs: float, add_compile_time: bool = False) -> Deadline:
        """Return a deadline for what is trained now, with a share of the time left and of the epochs."""
        seconds, epochs = of_time * (self.end - time.monotonic()), max(1, round(of_epochs * self.max_epochs))
        return Deadline(seconds, epochs, add_compile_time)

    def choose_epochs(self, trainer: Trainer) -> int | None:
        """Return the number of epochs that fits, or None if the present one does. Call it after each step.

        Measurements begin after the first step, which is often slow. One in which a step was compiled is not used.
        """
        if trainer.done < self.next_check or trainer.done >= trainer.steps:
            return None
        synchronise(trainer.store.device)
        now = time.monotonic()
        began, step = self.since or (now, trainer.done)
        end = self.end + (trainer.seconds_compiling if self.add_compile_time else 0.0)
        clock = torch.tensor([now - began, end - now, self.seconds], device=trainer.processes.device)
        seconds, left, whole = trainer.processes.mean(clock).tolist()  # clocks differ, but all must decide alike
        self.next_check = trainer.done + max(1, trainer.steps // _CHECKS)
        if self.since and seconds < _LEAST_SECONDS:
            return None
        compiled, self.compiling = trainer.seconds_compiling != self.compiling, trainer.seconds_compiling
        self.since = now, trainer.done
        if trainer.done == step or trainer.processes.any(int(compiled)):
            return None
        measured = (trainer.done - step) / seconds
        self.pace = measured if self.pace is None else (1 - _NEWEST) * self.pace + _NEWEST * measured
        return self._fit(trainer, self.pace, left, whole)

    def _fit(self, trainer: Trainer, pace: float, left: float, whole: float) -> int | None:
        """Return the epochs that fit into the seconds `left`, or None if the run would end about in time.

        `whole`: seconds of the whole run.
        """
        unused = left - (trainer.steps - trainer.done) / pace
        too_long = unused < -(_OVERDUE * whole + _RECOVERY * max(left, 0.0))
        too_short = unused > _UNUSED * whole and trainer.progress().fraction <= _LAST_START
        if not too_long and not too_short:
            return None
        steps = trainer.done + (left - _RESERVE * whole) * pace
        current = trainer.done // trainer.per_epoch + 1  # an epoch that has begun, or the next one, is finished
        epochs = max(current, min(int(steps / trainer.per_epoch), max(self.max_epochs, trainer.epochs)))
        return epochs if epochs != trainer.epochs else None
