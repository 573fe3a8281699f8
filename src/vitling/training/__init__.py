"""The one loop, and what it stands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import exports

if TYPE_CHECKING:
    from vitling.training.config import CheckpointConfig as CheckpointConfig
    from vitling.training.config import FitConfig as FitConfig
    from vitling.training.config import LoopConfig as LoopConfig
    from vitling.training.config import OptimConfig as OptimConfig
    from vitling.training.loop import fit as fit
    from vitling.training.moments import Moment as Moment
    from vitling.training.moments import Outcome as Outcome
    from vitling.training.moments import Watcher as Watcher
    from vitling.training.processes import Processes as Processes
    from vitling.training.rundir import RunDirectory as RunDirectory
    from vitling.training.schedules import Progress as Progress

_HOMES = {
    "CheckpointConfig": "config",
    "FitConfig": "config",
    "LoopConfig": "config",
    "Moment": "moments",
    "OptimConfig": "config",
    "Outcome": "moments",
    "Processes": "processes",
    "Progress": "schedules",
    "RunDirectory": "rundir",
    "Watcher": "moments",
    "fit": "loop",
}
__getattr__ = exports(__name__, _HOMES)
