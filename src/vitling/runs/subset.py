"""Settings to train on a part of a run's images, as calibration and cross-validation do."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from vitling.settings.config import LabelledConfig
from vitling.training.compilation import choose_compile
from vitling.training.feed import choose_batch_sizes

Config = TypeVar("Config", bound=LabelledConfig)


def keep_batch_size(config: Config, images: int, part: int, device: torch.device) -> Config:
    """Return settings to train on `part` of a run's images with the run's batch size, if it is compiled.

    A batch of another size would be compiled again, which takes up to two minutes. Images that do not fill a batch are
    left out, different ones each epoch, and there are more epochs to make up for it.
    """
    sizes = choose_batch_sizes(config.fit_config(), images, device)
    compiled = choose_compile(config.loop, device, config.epochs * len(sizes)) != "off"
    if not compiled or part < sizes[0]:
        return config
    steps = part // sizes[0]
    longer = scale_length(config, part / (steps * sizes[0]), steps / len(sizes))
    return replace(longer, batch=sizes[0], loop=replace(config.loop, drop_last=True, even="off"))


def scale_length(config: Config, factor: float, steps_per_epoch: float = 1.0) -> Config:
    """Multiply the epochs of a run, its schedules and the memory of its averaged weights, which is in steps.

    `steps_per_epoch`: of an epoch, in those of the run.
    """
    optim, epochs = config.optim, max(1, round(factor * config.epochs))
    factor = epochs / config.epochs
    schedule = optim.schedule_epochs and max(epochs, round(factor * optim.schedule_epochs))
    warmup = factor * optim.warmup(config.epochs)
    ema = optim.ema ** (1 / (factor * steps_per_epoch))
    optim = replace(optim, warmup_epochs=warmup, schedule_epochs=schedule, ema=ema)
    return replace(config, epochs=epochs, optim=optim)
