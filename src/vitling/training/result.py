"""The return value of `fit`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Best:
    """Weights of the epoch with the highest `FitConfig.best` metric."""

    epoch: int
    value: float
    weights: dict[str, Tensor]


@dataclass
class FitResult:
    """Figures of a finished run. The objective keeps the weights of the last epoch (their average with --optim.ema)."""

    metrics: dict[str, float]  # of the last epoch
    best: Best | None
    epochs: int
    steps: int
    seconds: float  # of training and watchers, over all starts, each counted up to its last checkpoint
    seconds_compiling: float  # of those, in this start: the first step with each batch size
    images_per_second: float  # highest pace between two readings, so without compilation and watchers
    accumulate: int
