"""--continue-from: what a run takes over from the settings of the one that it goes on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.files import read_json
from vitling.methods import METHODS
from vitling.methods.esvit import EsViTConfig
from vitling.settings.config import PLANNED, PretrainConfig
from vitling.training.config import Optimiser

USUAL: Optimiser = "adamw"
SHAPES = ("prototypes", "hidden", "bottleneck")


def settings_before(config: PretrainConfig) -> dict[str, Any]:
    """Of the run in --continue-from, as its config.json has them; nothing where there is none, or a file is named."""
    if config.continue_from is None:
        return {}
    start = Path(config.continue_from)
    if not start.exists():
        raise UserError(f"--continue-from {start}: there is no such run, and no such checkpoint.")
    saved = start / "config.json"
    return read_json(saved) if saved.exists() else {}


def with_batch(config: PretrainConfig, before: dict[str, Any]) -> PretrainConfig:
    return replace(config, batch=before["batch"]) if config.batch == PLANNED and "batch" in before else config


def with_preset(config: PretrainConfig, before: dict[str, Any]) -> PretrainConfig:
    """The optimiser's moments are those of one kind."""
    same = config.method == before.get("method") and config.preset == "auto"
    return replace(config, preset=before.get("preset", "paper")) if same else config


def with_store(config: PretrainConfig, before: dict[str, Any]) -> PretrainConfig:
    """Images decoded at another size are other images to a checkpoint."""
    return replace(config, store_size=config.store_size or before.get("store_size"))


def with_match(config: PretrainConfig, asked: PretrainConfig, before: dict[str, Any]) -> PretrainConfig:
    """Regions are compared as they were, where there were some and nothing else was asked for."""
    was = before.get("esvit", {}) if before.get("method") == config.method == "esvit" else {}
    said = "esvit.match" in config.said or asked.esvit.match != EsViTConfig.match
    if said or not was.get("region_weight"):
        return config
    return replace(config, esvit=replace(config.esvit, match=was.get("match", "argmax")))


def with_shapes(config: PretrainConfig, asked: PretrainConfig, before: dict[str, Any]) -> PretrainConfig:
    """The heads are as wide as they were, where nothing else was asked for; what is not as it was is named."""
    if not before:
        return config
    method, other = METHODS[config.method], METHODS.get(before.get("method", ""))
    wrong = [(name, before.get(name), getattr(config, name)) for name in ("backbone", "size", "batch")]
    if "optim" in before:
        wrong.append(("optim.name", before["optim"].get("name") or USUAL, config.optim.name or USUAL))
    if method.field and other is not None and other.field:
        own, saved = method.config_of(config), before.get(other.field, {})
        usual = {name: getattr(type(own)(), name) for name in SHAPES if hasattr(own, name)}
        wanted, said = method.config_of(asked), config.said_of(method.field)
        unsaid = [name for name in usual if name in saved and name not in said and getattr(wanted, name) == usual[name]]
        own = replace(own, **{name: saved[name] for name in unsaid})
        config = replace(config, **{method.field: own})
        wrong += [(f"{config.method}.{name}", saved.get(name), getattr(own, name)) for name in usual]
    flags = [f"--{name} {was}" for name, was, now in wrong if was is not None and was != now]
    if flags:
        raise UserError(f"--continue-from {config.continue_from}: that run had {', '.join(flags)}. Pass the same.")
    return config
