"""What is minimised. One file an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import exports

if TYPE_CHECKING:
    from vitling.objectives.config import SupervisedConfig as SupervisedConfig
    from vitling.objectives.objective import Batch as Batch
    from vitling.objectives.objective import Objective as Objective
    from vitling.objectives.supervised import Supervised as Supervised

_HOMES = {
    "Batch": "objective",
    "Objective": "objective",
    "Supervised": "supervised",
    "SupervisedConfig": "config",
}
__getattr__ = exports(__name__, _HOMES)
