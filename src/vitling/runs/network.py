"""The network of a stage: its initial weights, auxiliary term and checks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from vitling.backbones import mimetic
from vitling.backbones.backbone import Backbone, create
from vitling.backbones.transfer import load_weights
from vitling.errors import UserError
from vitling.evaluation.bundle import WEIGHTS, find_bundle
from vitling.methods import METHODS
from vitling.methods.drloc.loss import make_drloc_term
from vitling.objectives.objective import Objective, Weight
from vitling.settings.checks import check
from vitling.settings.config import PretrainConfig, RunConfig, TrainConfig
from vitling.settings.names import flag_name
from vitling.settings.stages import make_large_stage
from vitling.training.schedules import rise_and_fall
from vitling.training.trackers import check_trackers

_DRLOC_RISE = 20  # epochs, of the released schedule


def build_backbone(config: RunConfig, drop_path: float, initialise: bool = True) -> Backbone:
    """Build the network, with the initial weights of --init unless it is built for a check only."""
    torch.manual_seed(config.seed)
    backbone = create(config.backbone or "", config.size, config.data.channels, drop_path)
    if config.init == "mimetic" and config.from_ is None:  # otherwise other weights replace these
        mimetic.check(backbone.timm_model, backbone.name)
        if initialise:
            mimetic.initialise(backbone.timm_model)
    return backbone


def start_from(backbone: Backbone, source: str | None, keep_head: bool) -> list[str]:
    """Load weights into the backbone; return notes on what was loaded and what was not."""
    if source is None:
        return []
    path = Path(source)
    transfer = load_weights(backbone, find_bundle(path) / WEIGHTS if path.is_dir() else path)
    notes = [f"Started from {source}: {transfer.summary()}."]
    if transfer.dropped_heads:
        notes.append(f"Its head is {'kept' if keep_head else 'dropped'}: {', '.join(sorted(transfer.dropped_heads))}.")
    if transfer.missing:
        notes.append(f"Missing there, so left as initialised: {', '.join(transfer.missing[:5])} ...")
    return notes


def build_auxiliary(config: RunConfig, backbone: Backbone) -> nn.Module | None:
    return None if config.aux == "none" else make_drloc_term(backbone, config.drloc, config.seed)


def attach_auxiliary(objective: Objective, term: nn.Module | None, config: RunConfig) -> None:
    if term is not None:
        objective.attach(config.aux, term, _auxiliary_weight(config))


def _auxiliary_weight(config: RunConfig) -> Weight:
    weight = config.drloc.weight or 0.0
    if config.drloc.schedule == "constant":
        return weight
    return rise_and_fall(weight, _DRLOC_RISE, config.optim.over_epochs(config.epochs))


def describe_auxiliary(config: RunConfig) -> str:
    return "" if config.aux == "none" else f", {config.aux} with weight {config.drloc.weight:g}"


def check_network(config: RunConfig, backbone: Backbone) -> None:
    """Raise UserError if the network cannot take the views, or the method cannot train it."""
    if isinstance(config, PretrainConfig):
        for group in config.make_views(backbone.size).groups:
            if group.size > backbone.size:
                raise UserError(f"Local crops of {group.size} px are larger than global ones of {backbone.size} px.")
            backbone.grid_size(group.size)
        method = METHODS[config.method]
        if method.check_run is not None:
            method.check_run(method.config_of(config), backbone, config.epochs)
    for name in ("test_size", "final_size"):
        if (size := getattr(config, name, None)) is not None:
            try:
                backbone.grid_size(size)
            except UserError as problem:
                raise UserError(f"--{flag_name(name)} {size}: {problem}") from None
    if isinstance(config, TrainConfig) and config.final_size:
        check(config)  # the size may have been open before
        _check_large_stage(config)


def _check_large_stage(config: TrainConfig) -> None:
    """Build the network of the stage at --final-size, which is trained last."""
    try:
        large = make_large_stage(config).config
        check(large)
        build_auxiliary(large, build_backbone(large, 0.0, initialise=False))
    except UserError as problem:
        raise UserError(f"--final-size {config.final_size}: {problem}") from None


def dry_run(config: RunConfig) -> None:
    """Build the network and load its start, to fail early: before anything is deleted, decoded or trained."""
    check_trackers(config.loop.trackers)
    backbone = build_backbone(config, 0.0, initialise=False)
    check_network(config, backbone)
    build_auxiliary(config, backbone)
    start_from(backbone, config.from_, keep_head=False)
