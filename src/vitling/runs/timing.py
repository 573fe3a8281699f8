"""The time of a run with --minutes: the epochs that fit into it, and what follows training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from vitling.console import Log
from vitling.errors import UserError
from vitling.objectives.objective import Objective
from vitling.runs.images import Stores
from vitling.runs.opening import OpenRun
from vitling.settings.config import LabelledConfig, RunConfig
from vitling.settings.dense import DenseConfig
from vitling.settings.facts import Facts, Fit
from vitling.settings.names import format_flag, leaves
from vitling.settings.resolve import Resolved, resolve
from vitling.settings.saved import reopen
from vitling.startup import take_start
from vitling.training.compilation import free_memory
from vitling.training.compile_server import stop_servers
from vitling.training.deadline import Deadline
from vitling.training.feed import choose_batch_sizes
from vitling.training.pace import compile_before, measure_pace
from vitling.training.signals import raise_on_signal

_SAFETY = 0.96  # of the time left: checkpoints and evaluations take some of it
_SAVING_SECONDS = 5.0  # for the last checkpoint, and for Python to exit
_SAVING_SECONDS_CPU = 2.0  # nothing was compiled
_REPORT_SHARE, _REPORT_LEAST, _REPORT_MOST = 0.02, 4.0, 45.0  # of the run's time; seconds
_REPORT_WITH_IMAGES = 120.0  # seconds of a run; the report of a shorter one has no pictures
_REPORT_OF_FILES = 1.0  # seconds
EVALUATION_SPEED = 3  # times as fast as training
_EVALUATIONS_SHARE = 0.05  # of the time at most, during training on a CPU
_FAMILIAR_SHARE, _FAMILIAR_LEAST = 0.02, 200  # of the run's time; images
_USED_STEPS = 0.95  # of those that fit into the time, at least
_DENSE_EVALUATIONS = 6  # about ten on val during training, and masks and metrics on the host


class TooFewEpochsError(UserError):
    """Fewer epochs fit into the time than are worth training."""


class Clock:
    """The time that --minutes counts, from the start of the command, imports included."""

    def __init__(self) -> None:
        self.began = take_start()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began


def fit_to_time(
    resolved: Resolved,
    facts: Facts,
    build: Callable[[Any], Objective],
    stores: Stores,
    run: OpenRun,
    clock: Clock,
    min_epochs: int = 1,
    work: float = 1.0,
) -> tuple[Resolved, Deadline | None]:
    """Return the settings with as many epochs as fit into --minutes, at most those of the config, and the deadline.

    Measures the pace on an objective that is thrown away. With or without --minutes, this fills the compiler's cache.
    Raises TooFewEpochsError if fewer than `min_epochs` fit. `work`: all training in this stage, as a multiple of the
    run's.
    """
    config, log = resolved.config, run.directory.log
    if run.has_checkpoint:
        stop_servers()
        return resolved, None
    trial = (stores.train, config.fit_config(), run.processes, log)
    with raise_on_signal("Stopped before the first step; continue with --resume."), torch.random.fork_rng(devices=[]):
        if config.minutes is None:
            compile_before(lambda: build(config), *trial)
        else:
            log.info("Measuring the pace to fit the run into the time.")
            pace, compile_mode = measure_pace(build(config), *trial, 60 * config.minutes - clock.elapsed)
    stop_servers()
    free_memory()
    if config.minutes is None:
        return resolved, None
    ending = ending_seconds(config, stores, pace, run.has_gpu)
    left = 60 * config.minutes - clock.elapsed - ending
    left -= report_seconds(60 * config.minutes) if config.report else 0.0
    images = sum(choose_batch_sizes(config.fit_config(), len(stores.train), stores.train.device))  # of an epoch
    share = torch.tensor(fitting_epochs(left / work, pace, images), device=run.processes.device)
    fitting = float(run.processes.mean(share))
    fit = Fit(max(1, min(config.epochs, int(fitting))), compile_mode, epoch_part=config.loop.epoch_part)
    if fit.epochs < min_epochs:
        few = f"{max(int(fitting), 0)} epoch{'s' * (int(fitting) != 1)} would fit into the time"
        raise TooFewEpochsError(f"only {few}, fewer than the {min_epochs} that are worth it.")
    if not run.has_gpu:
        fit = _use_all_time(fit, fitting, config, stores, pace, ending)
        evaluations = torch.tensor(float(fit.evaluations), device=run.processes.device)
        fit = replace(fit, evaluations=round(float(run.processes.mean(evaluations))))
    part = "" if fit.epoch_part == 1 else f" of {fit.epoch_part:.0%} of the images each"
    log.info(f"{pace:,.0f} images/s, {max(left, 0):.0f} s left to train: --epochs {fit.epochs}{part}.")
    if fitting < 1:
        log.warning(
            f"--minutes {config.minutes:.3g} is too short: {clock.elapsed:.0f} s passed before training, about "
            f"{ending:.0f} s are kept for the end, and one epoch takes {max(1, images / pace):.0f} s."
        )
    deadline = Deadline(left, math.ceil(config.epochs * config.loop.epoch_part / fit.epoch_part))
    fitted = resolve(reopen(resolved), replace(facts, fit=fit))
    _log_changed_views(resolved, fitted, log)
    return fitted, deadline


def _log_changed_views(planned: Resolved, fitted: Resolved, log: Log) -> None:
    """Log the choices of the plan that the measured pace has replaced."""
    before = dict(leaves(planned.config))
    for name, value in leaves(fitted.config):
        if name.startswith("views.") and value != before[name]:
            log.info(f"  {format_flag(name, value)}  {fitted.origins[name].reason}")


def _use_all_time(fit: Fit, fitting: float, config: RunConfig, stores: Stores, pace: float, ending: float) -> Fit:
    """Divide the steps that fit on a CPU, of which there are few, into epochs, and leave little time to evaluations.

    With more than one evaluation, the best epoch is evaluated at the end too, which takes `ending` seconds.
    """
    per_epoch = len(choose_batch_sizes(config.fit_config(), len(stores.train), stores.train.device))
    if fitting < config.epochs:
        epochs, part = divide_steps(int(fitting * per_epoch), per_epoch)
        fit = replace(fit, epochs=epochs, epoch_part=part * config.loop.epoch_part)
    seconds = _EVALUATIONS_SHARE * 60 * (config.minutes or 0) - ending
    each = 0 if stores.val is None else len(stores.val) / (EVALUATION_SPEED * _convert_pace(config, pace))
    return replace(fit, evaluations=max(1, min(10, int(seconds / each) if each else 10)))


def divide_steps(steps: int, per_epoch: int) -> tuple[int, float]:
    """Return a number of epochs and the part of its batches that each has, the largest that wastes few steps."""
    steps = max(steps, 1)
    batches = next(n for n in range(min(per_epoch, steps), 0, -1) if steps // n * n >= _USED_STEPS * steps)
    return steps // batches, batches / per_epoch


def fitting_epochs(seconds: float, pace: float, images: int) -> float:
    """Return the epochs that fit into the seconds left, with some of them for checkpoints and evaluations."""
    return _SAFETY * seconds * pace / images


def ending_seconds(config: RunConfig, stores: Stores, pace: float, gpu: bool = True) -> float:
    """Estimate what follows training: decode the test split, evaluate it and val, on views that may be larger.

    On a CPU a pass over training images and the last validation count too, and less for saving.
    """
    if isinstance(config, LabelledConfig):
        pace *= (config.size or 1) ** 2 / config.eval_size**2
    if isinstance(config, DenseConfig):
        pace /= config.test_passes * (_DENSE_EVALUATIONS if gpu else 1)  # on CPUs `_use_all_time` limits evaluations
    hidden = stores.splits.hidden_test
    test, val = 0 if hidden is None else len(hidden), 0 if stores.val is None else len(stores.val)
    evaluated, saving = test + val, _SAVING_SECONDS
    if not gpu:
        evaluated += val
        if isinstance(config, LabelledConfig):  # for the marks of unfamiliar images
            evaluated += min(len(stores.train), familiar_images(60 * (config.minutes or 0), pace))
        saving, pace = _SAVING_SECONDS_CPU, _convert_pace(config, pace)
    return saving + test * stores.seconds_per_image + evaluated / (EVALUATION_SPEED * pace)


def _convert_pace(config: RunConfig, pace: float) -> float:
    """Return the pace of training in fp32, in which networks are evaluated on CPUs; bf16 is up to twice as fast."""
    return pace / 2 if config.loop.precision == "bf16" else pace


def report_seconds(run: float, timed: bool = True) -> float:
    """Return the seconds that the report may take after a run of this many seconds."""
    if timed and run < _REPORT_WITH_IMAGES:
        return _REPORT_OF_FILES
    return min(max(_REPORT_SHARE * run, _REPORT_LEAST), _REPORT_MOST)


def familiar_images(seconds: float, pace: float) -> int:
    """Return how many training images the model's familiarity may be measured on, in a run of this many seconds."""
    return max(_FAMILIAR_LEAST, int(_FAMILIAR_SHARE * seconds * EVALUATION_SPEED * pace))
