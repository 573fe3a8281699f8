"""Facts that settings are resolved from: the images, the machine, earlier runs. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Start:
    """Network that a run starts from (--from)."""

    backbone: str | None = None
    size: int | None = None  # pixels of the views it was trained on


@dataclass(frozen=True)
class Fit:
    """Length that the measured pace allows within --minutes."""

    epochs: int
    compile: str  # how the network was compiled when the pace was measured
    epoch_part: float = 1.0  # of the batches of an epoch, so that the time is used up
    evaluations: int = 10  # on the validation split


@dataclass(frozen=True)
class Facts:
    images: int  # images to train on; for the plan of `train`, with those that it may hold out
    pool: int = 0  # unlabelled images in addition
    classes: int = 0  # 0: no labels
    multi_label: bool = False
    own_val: int = 0  # of the images, those in the data's own val split
    has_test: bool = False
    side: int | None = 512  # median of the images' longer sides, px; None: unknown
    gpu: bool = True
    cores: int = 2  # of the CPU
    bf16: bool = False  # whether the CPU has instructions for it
    start: Start = field(default_factory=Start)
    previous: Mapping[str, Any] = field(default_factory=dict)  # settings of the run in --continue-from
    fit: Fit | None = None  # None: no --minutes, or the pace is not measured yet
