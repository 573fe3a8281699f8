"""A run that goes on from another's checkpoint with more to learn: what both have is kept, the rest starts anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitling.errors import UserError
from vitling.training.checkpoint import Checkpoints


def load_checkpoint(path: Path, device: torch.device, warn: Callable[[str], None]) -> dict[str, Any]:
    """The last one of a run's directory, or that of a file."""
    folder = Checkpoints(path / "checkpoints", 1)
    state = folder.load(path, device) if path.is_file() else folder.load_latest(device, warn)
    if state is None:
        raise UserError(f"There is no checkpoint in {path} to go on from.")
    if "parameters" not in state:
        raise UserError(f"{path} was written by a version of vitling that did not name what it holds; train it again.")
    return state


def list_parameter_names(objective: nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """Of the parameters, in the optimiser's order, by which it numbers them."""
    names = {p: name for name, p in objective.named_parameters()}
    return [names[p] for group in optimiser.param_groups for p in group["params"]]


def load_weights(objective: nn.Module, saved: dict[str, Tensor]) -> list[str]:
    """All that was saved has its place; gives the names of what is left as it was."""
    own = objective.state_dict()
    strange = [name for name in saved if name not in own]
    other = [name for name in saved if name in own and saved[name].shape != own[name].shape]
    if strange or other:
        said = f"{strange[0]} has no place in this run" if strange else f"{other[0]} has another shape in this run"
        raise UserError(f"This run cannot go on from that checkpoint: {said}. Are backbone and settings the same?")
    objective.load_state_dict(saved, strict=False)
    return [name for name in own if name not in saved]


def merge_moments(optimiser: torch.optim.Optimizer, names: list[str], saved: dict[str, Any]) -> dict[str, Any]:
    """The optimiser's state, with the moments that a checkpoint has for parameters of the same name."""
    at = {name: i for i, name in enumerate(saved["parameters"])}
    found = saved["optimiser"]["state"]
    kept = {i: found[at[name]] for i, name in enumerate(names) if at.get(name) in found}
    return {"state": kept, "param_groups": optimiser.state_dict()["param_groups"]}
