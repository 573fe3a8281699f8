"""Steps that all training stages share, from the network to the figures of result.json."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitling.backbones import mimetic
from vitling.backbones.backbone import Backbone, create
from vitling.backbones.transfer import load_weights
from vitling.console import Log
from vitling.data.dataset import Splits
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.bundle import WEIGHTS, find_bundle
from vitling.evaluation.meta import BundleMeta
from vitling.methods import METHODS
from vitling.methods.drloc.loss import make_drloc_term
from vitling.objectives.objective import Objective, Weight
from vitling.runs.images import Stores
from vitling.runs.opening import OpenRun
from vitling.settings.checks import check
from vitling.settings.config import LabelledConfig, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.dense import DenseConfig
from vitling.settings.facts import Facts, Fit
from vitling.settings.names import flag_name, format_value, leaves
from vitling.settings.resolve import Resolved, resolve
from vitling.settings.saved import reopen
from vitling.settings.stages import make_large_stage
from vitling.startup import take_start
from vitling.training.compilation import load_compiler
from vitling.training.deadline import Deadline
from vitling.training.feed import choose_batch_sizes
from vitling.training.pace import measure_pace
from vitling.training.result import FitResult
from vitling.training.schedules import rise_and_fall
from vitling.training.signals import raise_on_signal
from vitling.training.trackers import check_trackers

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
_DRLOC_RISE = 20  # epochs, of the released schedule


class TooFewEpochsError(UserError):
    """Fewer epochs fit into the time than are worth training."""


def build_backbone(config: RunConfig, drop_path: float, initialise: bool = True) -> Backbone:
    """Build the network, with the initial weights of --init unless it is built for a check only."""
    torch.manual_seed(config.seed)
    backbone = create(config.backbone or "", config.size, config.data.channels, drop_path)
    if config.init == "mimetic" and config.from_ is None:  # otherwise other weights replace these
        mimetic.check(backbone.timm_model, backbone.name)
        if initialise:
            mimetic.initialise(backbone.timm_model)
    return backbone


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


def begin(
    resolved: Resolved,
    splits: Splits,
    backbone: Backbone,
    run: OpenRun,
    start: str | None = None,
    keep_head: bool = False,
) -> Stores:
    """Load the weights to start from, open the run directory, write config.json and decode the images, while the
    compiler is loaded.

    Call it after all checks: --overwrite deletes an earlier run here. `start` replaces --from after a first stage.
    """
    source = None if run.saved is not None and run.has_checkpoint else start or resolved.config.from_
    notes = [*splits.notes, *resolved.notes, *start_from(backbone, source, keep_head)]
    run.prepare()
    splits.on_test_opened = run.directory.log_test_opening
    for note in notes:
        run.directory.log.info(note)
    for warning in splits.warnings:
        run.directory.log.warning(warning)
    run.write_settings(resolved, resolved.config.loop.trackers)
    load_compiler(resolved.config.loop, run.processes.device)
    return Stores(resolved.config, splits, run)


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

    Measures the pace on an objective that is thrown away, which also fills the compiler's cache. Raises
    TooFewEpochsError if fewer than `min_epochs` fit. `work`: of all training in this stage, in runs of its own length.
    """
    config, log = resolved.config, run.directory.log
    if config.minutes is None or run.has_checkpoint:
        return resolved, None
    log.info("Measuring the pace to fit the run into the time.")
    with raise_on_signal("Stopped before the first step; continue with --resume."), torch.random.fork_rng(devices=[]):
        pace, compile_mode = measure_pace(build(config), stores.train, config.fit_config(), run.processes, log)
    free_memory()
    ending = ending_seconds(config, stores, pace, run.has_gpu)
    left = 60 * config.minutes - clock.elapsed - ending
    left -= report_seconds(60 * config.minutes) if config.report else 0.0
    images = sum(choose_batch_sizes(config.fit_config(), len(stores.train), stores.train.device))  # of an epoch
    share = torch.tensor(fitting_epochs(left / work, pace, images), device=run.processes.device)
    fitting = float(run.processes.mean(share))
    fit = Fit(max(1, min(config.epochs, int(fitting))), compile_mode)
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
            f"--minutes {config.minutes:.3g} is too short: {clock.elapsed:.0f} s passed before training, and one epoch "
            f"takes {max(1, images / pace):.0f} s."
        )
    deadline = Deadline(left, math.ceil(config.epochs / fit.epoch_part))
    fitted = resolve(reopen(resolved), replace(facts, fit=fit))
    _log_changed_views(resolved, fitted, log)
    return fitted, deadline


def _log_changed_views(planned: Resolved, fitted: Resolved, log: Log) -> None:
    """Log the choices of the plan that the measured pace has replaced."""
    before = dict(leaves(planned.config))
    for name, value in leaves(fitted.config):
        if name.startswith("views.") and value != before[name]:
            log.info(f"  --{flag_name(name)} {format_value(value)}  {fitted.origins[name].reason}")


def _use_all_time(fit: Fit, fitting: float, config: RunConfig, stores: Stores, pace: float, ending: float) -> Fit:
    """Divide the steps that fit on a CPU, of which there are few, into epochs, and leave little time to evaluations.

    With more than one evaluation, the best epoch is evaluated at the end too, which takes `ending` seconds.
    """
    per_epoch = len(choose_batch_sizes(config.fit_config(), len(stores.train), stores.train.device))
    if fitting < config.epochs:
        epochs, part = divide_steps(int(fitting * per_epoch), per_epoch)
        fit = replace(fit, epochs=epochs, epoch_part=part)
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


def report_seconds(run: float, timed: bool = True) -> float:
    """Return the seconds that the report may take after a run of this many seconds."""
    if timed and run < _REPORT_WITH_IMAGES:
        return _REPORT_OF_FILES
    return min(max(_REPORT_SHARE * run, _REPORT_LEAST), _REPORT_MOST)


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def familiar_images(seconds: float, pace: float) -> int:
    """Return how many training images the model's familiarity may be measured on, in a run of this many seconds."""
    return max(_FAMILIAR_LEAST, int(_FAMILIAR_SHARE * seconds * EVALUATION_SPEED * pace))


def ending_seconds(config: RunConfig, stores: Stores, pace: float, gpu: bool = True) -> float:
    """Estimate what follows training: decode the test split, evaluate it and val, on views that may be larger.

    On a CPU a pass over training images and the last validation count too, and less for saving.
    """
    if isinstance(config, LabelledConfig):
        pace *= (config.size or 1) ** 2 / config.eval_size**2
    if isinstance(config, DenseConfig):
        pace /= config.test_passes * _DENSE_EVALUATIONS
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


def describe_auxiliary(config: RunConfig) -> str:
    return "" if config.aux == "none" else f", {config.aux} with weight {config.drloc.weight:g}"


def make_meta(config: RunConfig, store: Store, **head: Any) -> BundleMeta:
    """Describe a saved model: its input, and its head if it has one."""
    about: dict[str, Any] = {"task": "none", "class_names": (), "size": config.size or 0} | head
    return BundleMeta(
        store_size=store.size,
        mean=store.mean,
        std=store.std,
        channels=config.data.channels,
        bits=config.data.bits,
        max_pixels=config.data.max_pixels,
        **about,
    )


def summarise_fit(config: RunConfig, stores: Stores, fitted: FitResult) -> dict[str, Any]:
    """Return the entries that every result.json has."""
    return {
        "finished": True,
        "aux": config.aux,
        "backbone": config.backbone,
        "size": config.size,
        "store_size": stores.train.size,
        "images": len(stores.train),
        "epochs": fitted.epochs,
        "steps": fitted.steps,
        "seed": config.seed,
        "seconds": round(fitted.seconds, 2),
        "seconds_compiling": round(fitted.seconds_compiling, 2),
        "images_per_second": round(fitted.images_per_second, 1),
        "accumulate": fitted.accumulate,
        "bad_files": len(stores.bad),
        "data_hashes": stores.hashes,
    }
