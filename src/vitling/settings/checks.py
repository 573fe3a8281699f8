"""What no run can be told: numbers that cannot be meant, and settings that contradict each other. No torch here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args, get_type_hints

from vitling.errors import UserError
from vitling.methods import registry as methods
from vitling.methods.drloc import DRLocConfig
from vitling.settings.config import PLANNED, LabelledConfig, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.names import flag, leaves

_AT_LEAST_ONE = (
    *("seeds", "size", "store_size", "test_size", "pretrain_size", "pretrain_epochs", "final_size"),
    *("eval_every", "watch_every", "loop.log_every", "views.mix_parts", "pretrain_views.mix_parts"),
)
_SHARES = (
    *("drop_path", "objective.smoothing", "objective.drop_path"),
    *("views.flip", "views.blur", "views.erase", "views.mix_prob", "pretrain_views.flip", "pretrain_views.blur"),
)
_NOT_NEGATIVE = (
    *("views.mixup", "views.cutmix"),
    *("optim.lr", "optim.warmup_lr", "optim.weight_decay", "optim.final_weight_decay"),
)
_ANGLES = ("views.rotate", "pretrain_views.rotate")


def check(config: RunConfig) -> None:
    """A UserError for a number that cannot be meant."""
    loop = config.for_the_loop()
    if isinstance(config, PretrainConfig | TrainConfig):  # what is filled in fits
        planned = isinstance(config, TrainConfig) and loop.epochs == PLANNED
        epochs = loop.optim.over_epochs(1) if planned else loop.epochs
        loop = replace(loop, epochs=epochs, batch=loop.optim.accumulate if loop.batch == PLANNED else loop.batch)
    loop.check()
    if config.minutes is not None and not config.minutes > 0:
        raise UserError(f"--minutes must be more than 0, not {config.minutes:g}.")
    for name, value in leaves(config):
        if value is None:
            continue
        if name in _AT_LEAST_ONE and value < 1:
            raise UserError(f"--{flag(name)} must be at least 1, not {value}.")
        if name in _SHARES and not 0 <= value <= 1:
            raise UserError(f"--{flag(name)} must lie in 0..1, not {value}.")
        if name in _NOT_NEGATIVE and value < 0:
            raise UserError(f"--{flag(name)} must not be negative, but is {value}.")
        if name in _ANGLES and not 0 <= value <= 180:
            raise UserError(f"--{flag(name)} must lie in 0..180 degrees, not {value:g}.")
    if config.aux not in get_args(get_type_hints(RunConfig)["aux"]):
        raise UserError(f"--aux {config.aux}: there is none and drloc.")
    if config.aux == "none" and config.drloc != DRLocConfig():
        raise UserError("--drloc says how the auxiliary term is computed, and there is none: add --aux drloc.")
    config.drloc.check()
    if isinstance(config, LabelledConfig):
        config.views.check()
        config.views.plan(224).check_channels(config.data.channels)
    if isinstance(config, PretrainConfig | TrainConfig):
        _check_method(config)


def _check_method(config: PretrainConfig | TrainConfig) -> None:
    names = get_args(get_type_hints(type(config))["method"])
    if config.method not in names:
        raise UserError(f"--method {config.method}: there is {', '.join(names)}.")
    methods.check_settings(config)
    if isinstance(config, TrainConfig):
        config.pretrain_views.check("--pretrain-views")
        return
    if config.continue_from is not None and (config.from_ or config.minutes):
        raise UserError("--continue-from takes all from a run, its schedule too: leave out --from and --minutes.")
    if config.views_budget is not None:
        if config.minutes is not None or "epochs" in config.said:
            other = "--epochs" if config.minutes is None else "--minutes"
            raise UserError(f"--views-budget and {other} both say how long the run is. Leave one out.")
        if not 0 < config.views_budget < math.inf:
            raise UserError(f"--views-budget must be more than 0, not {config.views_budget:g}.")
    config.views.check()
    plan = methods.plan_of(config, methods.SIZE)
    plan.check_channels(config.data.channels)
    if plan.loses_boxes and "esvit.match" in config.said:
        raise UserError(
            "--esvit.match place: views that are turned have no places. Leave out --views.rotate, or take "
            "--esvit.match argmax."
        )
