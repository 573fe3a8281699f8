"""The training loop and its parts: schedules, optimisers, checkpoints, processes, precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.training.config import CheckpointConfig as CheckpointConfig
    from vitling.training.config import FitConfig as FitConfig
    from vitling.training.config import LoopConfig as LoopConfig
    from vitling.training.config import OptimConfig as OptimConfig
    from vitling.training.loop import fit as fit
    from vitling.training.processes import Processes as Processes
    from vitling.training.result import FitResult as FitResult
    from vitling.training.rundir import RunDirectory as RunDirectory

_MODULES = {
    "CheckpointConfig": "config",
    "FitConfig": "config",
    "FitResult": "result",
    "LoopConfig": "config",
    "OptimConfig": "config",
    "Processes": "processes",
    "RunDirectory": "rundir",
    "fit": "loop",
}
__getattr__ = make_getattr(__name__, _MODULES)
