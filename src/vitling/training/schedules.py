"""Schedules: numbers that change over a run, as functions of Progress."""

from __future__ import annotations

import math

from vitling.objectives.progress import Progress, Schedule
from vitling.training.config import CosineFrom, FitConfig


def warmup_cosine(
    peak: float,
    floor: float,
    warmup_epochs: float,
    start: float = 0.0,
    over_epochs: float | None = None,
    cosine_from: CosineFrom = "warmup",
) -> Schedule:
    """Return a schedule that rises linearly from `start` to `peak`, then falls by half a cosine to `floor`.

    The cosine ends after `over_epochs`, by default with the run. With `cosine_from="start"` it begins at step 0 and is
    used once the warm-up is over, as in timm: the value drops a little there. "idmm" is IDMM's released formula, whose
    parenthesis is misplaced: cos((pi e - w) / (E - w)) for cos(pi (e - w) / (E - w)). It drops there too, and rises
    again before the end. The value at step 0 is above 0, so that the first step already learns.
    """

    def value(progress: Progress) -> float:
        per_epoch = progress.steps / progress.epochs
        steps = progress.steps if over_epochs is None else over_epochs * per_epoch
        warmup = min(warmup_epochs * per_epoch, steps - 1)
        first = 0 if start else 1
        if progress.step < warmup:
            return start + (peak - start) * (progress.step + first) / (warmup + first)
        begin = 0.0 if cosine_from == "start" else warmup
        less = 1.0 if cosine_from == "idmm" else math.pi
        angle = (math.pi * progress.step - less * begin) / max(steps - begin, 1)
        return floor + (peak - floor) * 0.5 * (1 + math.cos(angle))

    return value


def warmup_linear(peak: float, floor: float, warmup_epochs: float, over_epochs: float) -> Schedule:
    """Return a schedule that rises linearly to `peak`, then falls linearly to `floor`."""

    def value(progress: Progress) -> float:
        per_epoch = progress.steps / progress.epochs
        steps = over_epochs * per_epoch
        warmup = min(warmup_epochs * per_epoch, steps - 1)
        if progress.step < warmup:
            return peak * (progress.step + 1) / (warmup + 1)
        return peak + (floor - peak) * (progress.step - warmup) / max(steps - warmup, 1)

    return value


def warmup_steps(peak: float, warmup_epochs: float, drops: tuple[float, ...], over_epochs: float) -> Schedule:
    """Return a schedule that rises linearly to `peak` and is divided by 10 after each of these fractions of the run."""

    def value(progress: Progress) -> float:
        per_epoch = progress.steps / progress.epochs
        warmup = warmup_epochs * per_epoch
        if progress.step < warmup:
            return peak * (progress.step + 1) / (warmup + 1)
        done = progress.step / (over_epochs * per_epoch) + 1e-9  # 8/12 is not exact
        return peak * 0.1 ** sum(done >= drop for drop in drops)

    return value


def rise_and_fall(peak: float, rise_epochs: int, over_epochs: float) -> Schedule:
    """Return DRLoc's released weight, a step per epoch E: peak E / w up to E = w, then peak (1 - (E - w) / (T - w))."""

    def value(progress: Progress) -> float:
        epoch = progress.epochs_done
        if epoch <= rise_epochs:
            return peak * epoch / rise_epochs
        return peak * (1 - (epoch - rise_epochs) / (over_epochs - rise_epochs))

    return value


def lr_schedule(config: FitConfig) -> Schedule:
    """Return the learning rate's schedule."""
    optim, epochs = config.optim, config.epochs
    peak, warmup, over = optim.peak_lr(config.batch), optim.warmup(epochs), optim.over_epochs(epochs)
    if optim.schedule == "linear":
        return warmup_linear(peak, optim.min_lr, warmup, over)
    if optim.schedule == "steps":
        return warmup_steps(peak, warmup, optim.drops, over)
    return warmup_cosine(peak, optim.min_lr, warmup, optim.warmup_lr, over, optim.cosine_from)
