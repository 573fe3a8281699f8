"""Continuation of another run from its checkpoint, with additional parts: shared weights are kept, new ones are
initialised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitling.errors import InvalidFile, UserError
from vitling.shortage import is_out_of_memory
from vitling.training.checkpoint import Checkpoints, DamagedCheckpointError
from vitling.training.checkpoint_content import check_types


def load_checkpoint(path: Path, device: torch.device, warn: Callable[[str], None]) -> dict[str, Any]:
    """Load a checkpoint file, or the latest checkpoint of a run directory."""
    folder = Checkpoints(path / "checkpoints", 1)
    try:
        state = folder.load(path, device) if path.is_file() else folder.load_latest(device, warn, _check)
    except DamagedCheckpointError:
        raise UserError(f"{path} is damaged: it does not match its digest. Name another checkpoint.") from None
    except (UserError, OSError):
        raise
    except Exception as problem:  # torch raises many exception types for foreign or truncated files
        if is_out_of_memory(problem):
            raise
        raise UserError(f"{path} is damaged or not a vitling checkpoint. Pass a file from RUN/checkpoints.") from None
    if state is None:
        raise UserError(f"There is no checkpoint in {path} to continue from.")
    _check(path, state)
    return state


def _check(path: Path, state: dict[str, Any]) -> None:
    if "parameters" not in state:
        raise InvalidFile(path, "written by an older vitling without parameter names; train that run again")
    check_types(path, state)


def list_parameter_names(objective: nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """List parameter names in the optimiser's order, by which it numbers its state."""
    names = {p: name for name, p in objective.named_parameters()}
    return [names[p] for group in optimiser.param_groups for p in group["params"]]


def load_weights(objective: nn.Module, saved: dict[str, Tensor]) -> list[str]:
    """Load all of `saved` into the objective and return the names that keep their initial values."""
    own = objective.state_dict()
    unknown = [name for name in saved if name not in own]
    reshaped = [name for name in saved if name in own and saved[name].shape != own[name].shape]
    if unknown or reshaped:
        what = (
            f"{unknown[0]} is not part of this run" if unknown else f"{reshaped[0]} has a different shape in this run"
        )
        raise UserError(f"This run cannot continue from that checkpoint: {what}. Use the same backbone and settings.")
    objective.load_state_dict(saved, strict=False)
    return [name for name in own if name not in saved]


def merge_moments(optimiser: torch.optim.Optimizer, names: list[str], saved: dict[str, Any]) -> dict[str, Any]:
    """Return the optimiser's state with the checkpoint's moments for parameters of the same name."""
    index = {name: i for i, name in enumerate(saved["parameters"])}
    moments = saved["optimiser"]["state"]
    kept = {i: moments[index[name]] for i, name in enumerate(names) if index.get(name) in moments}
    return {"state": kept, "param_groups": optimiser.state_dict()["param_groups"]}
