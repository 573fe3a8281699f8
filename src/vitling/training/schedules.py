"""Numbers that change over a run, as functions of where the run stands."""

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
    """Linear from `start` to `peak`, then half a cosine down to `floor` after `over_epochs`, which are the run's unless
    said otherwise. A cosine from the start is the one that timm evaluates once the warm-up is over: the rate drops a
    little there. That of `idmm` is released with a misplaced parenthesis, cos((pi e - w) / (E - w)) for
    cos(pi (e - w) / (E - w)): it drops there too, and turns up again before the end. Step 0 already moves."""

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


def rise_and_fall(peak: float, rise_epochs: int, over_epochs: float) -> Schedule:
    """DRLoc's released weight, a step each epoch E: peak E / w up to E = w, then peak (1 - (E - w) / (T - w))."""

    def value(progress: Progress) -> float:
        epoch = progress.epochs_done
        if epoch <= rise_epochs:
            return peak * epoch / rise_epochs
        return peak * (1 - (epoch - rise_epochs) / (over_epochs - rise_epochs))

    return value


def lr_schedule(config: FitConfig) -> Schedule:
    optim, epochs = config.optim, config.epochs
    peak, warmup, over = optim.peak_lr(config.batch), optim.warmup(epochs), optim.over_epochs(epochs)
    return warmup_cosine(peak, optim.min_lr, warmup, optim.warmup_lr, over, optim.cosine_from)
