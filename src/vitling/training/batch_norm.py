"""Batch norm takes its statistics over what one pass holds: what that means for a run is said before it begins."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitling.errors import UserError
from vitling.objectives.heads import BatchNorm
from vitling.training.processes import Processes


def check_batch_norm(
    objective: nn.Module,
    smallest: int,
    processes: Processes,
    accumulate: int,
    warn: Callable[[str], None],
) -> None:
    norms = [module for module in objective.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    passes = processes.world * accumulate
    if smallest // passes < 2:
        raise UserError(
            "There is batch norm, which needs two images in every pass, and the last batch of an epoch has fewer. Pass "
            "--loop.drop-last, or another --batch."
        )
    joined = processes.device.type == "cuda" or all(isinstance(norm, BatchNorm) for norm in norms)
    if passes > 1 and not (joined and passes == processes.world):
        warn("Batch norm takes its statistics over each pass, not over the whole batch.")
