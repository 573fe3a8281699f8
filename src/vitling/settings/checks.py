"""Checks of settings that depend on each other; ranges are given with the fields. Imports no torch."""

from __future__ import annotations

from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.methods.drloc.settings import DRLocConfig
from vitling.ranges import check_ranges
from vitling.settings.config import PLANNED, PretrainConfig, RunConfig, TrainConfig


def check(config: RunConfig) -> None:
    """Raise UserError for values out of range, and for settings that contradict each other."""
    check_ranges(config)
    _check_loop(config)
    if config.aux == "none" and config.drloc != DRLocConfig():
        raise UserError("--drloc.* needs the auxiliary loss: add --aux drloc.")
    if isinstance(config, PretrainConfig | TrainConfig):
        _check_method(config)
    if isinstance(config, PretrainConfig):
        _check_pretraining(config)
    if isinstance(config, TrainConfig) and config.final_size and config.size and config.final_size <= config.size:
        raise UserError(f"--final-size {config.final_size} is not larger than --size {config.size}. Pass a larger one.")
    config.make_views(224).check_channels(config.data.channels)


def check_batch(config: PretrainConfig, images: int) -> None:
    """Raise UserError if a method that compares images would get one at a time."""
    if METHODS[config.method].compares_images and min(config.batch // config.optim.accumulate, images) < 2:
        raise UserError(
            f"--method {config.method} compares images with each other, but each pass has one. Use 2 or more images "
            "and a --batch of at least 2 x --optim.accumulate."
        )


def check_task(name: str, task: str) -> None:
    """Raise UserError for labels that the method cannot use."""
    if METHODS[name].labels == "some" and task == "multi":
        raise UserError(
            f"--method {name} needs one class per image, but these images have several labels. --method idmm needs "
            "no labels."
        )


def _check_loop(config: RunConfig) -> None:
    """Check the loop's settings; those that the plan fills in are taken to fit."""
    epochs = config.optim.schedule_epochs or 1 if config.epochs == PLANNED else config.epochs
    batch = config.optim.accumulate if config.batch == PLANNED else config.batch
    config.fit_config(epochs=epochs, batch=batch).check()


def _check_method(config: PretrainConfig | TrainConfig) -> None:
    """Raise UserError for settings of another method, or settings that contradict each other."""
    for name, method in METHODS.items():
        own = method.config_of(config)
        if own is None:
            continue
        if config.method not in ("auto", name) and own != type(own)():
            raise UserError(f"--{name}.* needs --method {name}, but the method is {config.method}.")
        if hasattr(own, "check"):
            own.check()


def _check_pretraining(config: PretrainConfig) -> None:
    if config.continue_from is not None and (config.from_ or config.minutes):
        raise UserError("--continue-from takes weights and schedule from a run: leave out --from and --minutes.")
    if config.views_budget is not None and (config.minutes is not None or "epochs" in config.explicit):
        other = "--epochs" if config.minutes is None else "--minutes"
        raise UserError(f"--views-budget and {other} both set the length of the run. Leave one out.")
