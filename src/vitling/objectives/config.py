"""Settings of the objectives. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass
class SupervisedConfig:
    """Classification."""

    smoothing: float = 0.1
    """Label smoothing: this much of the target is spread over all classes."""
    drop_path: float = 0.1
    """Stochastic depth of the last block; earlier blocks less."""
    class_weights: Literal["none", "inverse"] = "none"
    """inverse: rare classes weigh more in the loss."""
