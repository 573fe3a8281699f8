"""Building blocks that the losses of all methods share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.objectives.moments import Moment as Moment
    from vitling.objectives.moments import Watcher as Watcher
    from vitling.objectives.objective import Batch as Batch
    from vitling.objectives.objective import Objective as Objective
    from vitling.objectives.progress import Progress as Progress

_MODULES = {
    "Batch": "objective",
    "Moment": "moments",
    "Objective": "objective",
    "Progress": "progress",
    "Watcher": "moments",
}
__getattr__ = make_getattr(__name__, _MODULES)
