"""--continue-from: the settings that a run inherits from the one it continues. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.loading import convert, read_json
from vitling.methods import METHODS
from vitling.methods.method import Method
from vitling.settings.config import PretrainConfig
from vitling.settings.layers import Draft

_OPTIMISER = "adamw"  # of a run that names none


def read_previous(config: PretrainConfig) -> dict[str, Any]:
    """Read the settings of the run in --continue-from; nothing for a checkpoint file."""
    if config.continue_from is None:
        return {}
    start = Path(config.continue_from)
    if not start.exists():
        raise UserError(f"--continue-from {start}: there is no such run or checkpoint.")
    saved = start / "config.json"
    if not saved.exists():
        return {}
    values = read_json(saved)
    convert(values, PretrainConfig, saved)
    return values


def inherit_settings(draft: Draft[PretrainConfig], previous: Mapping[str, Any]) -> None:
    """Take over what a checkpoint depends on: the decoded size, the batch and the optimiser of the same method."""
    if not previous:
        return
    reason = f"as in {draft.config.continue_from}"
    if (side := previous.get("store_size")) is not None:
        draft.fill("store_size", side, "method", reason)
    if "batch" in previous:
        draft.fill("batch", previous["batch"], "method", reason)
    if previous.get("method") == draft.config.method:
        draft.fill("preset", previous.get("preset", "paper"), "method", reason)


def inherit_method_settings(draft: Draft[PretrainConfig], method: Method, previous: Mapping[str, Any]) -> None:
    """Take over the shapes of heads, and how regions were matched."""
    other = METHODS.get(previous.get("method", ""))
    if other is None or other.field is None:
        return
    saved = previous.get(other.field, {})
    for name in (*method.shapes, *(method.continued if other is method else ())):
        if name in saved:
            draft.set(f"{method.field}.{name}", saved[name], "method", f"as in {draft.config.continue_from}")


def check_continues(config: PretrainConfig, previous: Mapping[str, Any]) -> None:
    """Raise UserError for settings that the checkpoint does not allow to change."""
    if not previous:
        return
    method, other = METHODS[config.method], METHODS.get(previous.get("method", ""))
    pairs = [(name, previous.get(name), getattr(config, name)) for name in ("backbone", "size", "batch")]
    if "optim" in previous:
        pairs.append(("optim.name", previous["optim"].get("name") or _OPTIMISER, config.optim.name or _OPTIMISER))
    if method.field and other is not None and other.field:
        own, saved = method.config_of(config), previous.get(other.field, {})
        pairs += [(f"{config.method}.{name}", saved.get(name), getattr(own, name)) for name in method.shapes]
    flags = [f"--{name} {was}" for name, was, now in pairs if was is not None and was != now]
    if flags:
        raise UserError(f"--continue-from {config.continue_from}: that run had {', '.join(flags)}. Pass the same.")
