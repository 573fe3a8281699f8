"""Checks before a run starts that batch norm, whose statistics are those of one pass, gets enough images."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitling.errors import UserError
from vitling.objectives.heads import BatchNorm
from vitling.training.processes import Processes


def check_batch_norm(
    objective: nn.Module, smallest_batch: int, processes: Processes, accumulate: int, warn: Callable[[str], None]
) -> None:
    """Raise UserError if a pass can have fewer than two images, and warn if statistics are not over the whole batch."""
    norms = [module for module in objective.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    passes = processes.world * accumulate
    if smallest_batch // passes < 2:
        raise UserError(
            "Batch norm needs two images in every pass, but the last batch of an epoch has fewer. Use "
            "--loop.drop-last or a different --batch."
        )
    synchronised = processes.device.type == "cuda" or all(isinstance(norm, BatchNorm) for norm in norms)
    if passes > 1 and not (synchronised and passes == processes.world):
        warn("Batch norm computes its statistics over each pass, not over the whole batch.")
