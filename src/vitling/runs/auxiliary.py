"""The auxiliary term that --aux names, on any objective."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.methods.drloc import drloc_weight
from vitling.methods.drloc.loss import drloc_term
from vitling.objectives.objective import Objective, Weight
from vitling.settings.config import Config, RunConfig
from vitling.training.schedules import rise_and_fall

RISE = 20  # epochs, of the released schedule


def settle_auxiliary(config: Config, backbone: str) -> Config:
    """With the weight that belongs to the backbone, where none was given."""
    if config.aux == "none" or config.drloc.weight is not None:
        return config
    return replace(config, drloc=replace(config.drloc, weight=drloc_weight(backbone)))


def make_auxiliary(config: RunConfig, backbone: Backbone) -> nn.Module | None:
    return None if config.aux == "none" else drloc_term(backbone, config.drloc, config.seed)


def attach_auxiliary(objective: Objective, term: nn.Module | None, config: RunConfig) -> None:
    if term is not None:
        objective.attach(config.aux, term, _weight(config))


def _weight(config: RunConfig) -> Weight:
    weight = config.drloc.weight or 0.0
    if config.drloc.schedule == "constant":
        return weight
    return rise_and_fall(weight, RISE, config.optim.over_epochs(config.epochs))
