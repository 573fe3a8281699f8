"""Calibration of runs that hold out no images, by a twin.

Before the run itself, a twin with about a quarter of its epochs is trained from the same start without a fifth of the
images, and its outputs for those are kept. The temperature depends on mixing and smoothing much more than on the length
of a run, so the twin's temperature suits the model, which is trained on all images and loses nothing. A temperature
fitted on training images would not: a network that has memorised them is more certain of them (docs/trust.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from vitling.data.holdout import hold_out
from vitling.data.look_alikes import group_look_alikes
from vitling.data.store import Store
from vitling.errors import InvalidFile
from vitling.evaluation.classify import get_labels
from vitling.evaluation.familiarity import DISTANCES, compute_features, compute_logits_and_features, fit_familiarity
from vitling.evaluation.trust import Calibration
from vitling.files import write_file
from vitling.loading import read_safetensors
from vitling.methods.supervised.loss import Supervised
from vitling.runs.images import Stores
from vitling.runs.opening import OpenRun
from vitling.runs.origins import knows_labels
from vitling.settings.config import FinetuneConfig, LabelledConfig
from vitling.training.compilation import free_memory
from vitling.training.deadline import Deadline
from vitling.training.loop import fit
from vitling.training.rundir import RunDirectory

FOLDER, FILE = "calibration", "calibration.safetensors"
SHARE = 0.25  # of the run's epochs
HELD_OUT = 0.2  # of the images
TWIN_WORK = SHARE * (1 - HELD_OUT)  # training of the twin, as a multiple of the run's

Build = Callable[[LabelledConfig], Supervised]


def needs_twin(config: LabelledConfig, stores: Stores) -> bool:
    return config.calibrate == "on" and stores.val is None


def calibrate(
    config: LabelledConfig, stores: Stores, build: Build, run: OpenRun, deadline: Deadline | None = None
) -> Calibration | None:
    """Return the outputs of a twin for the images that it was not trained on; None if they are not needed.

    They are kept in a file, so that a resumed run does not train the twin again.
    """
    if not needs_twin(config, stores):
        return None
    path, log = run.directory.path / FILE, run.directory.log
    if is_larger_size(config):
        smaller = Path(config.from_ or "") / FILE  # its distances are of the features at the smaller size
        return replace(load_calibration(smaller), distances=None) if smaller.exists() else None
    if path.exists():
        _delete_twin(run)  # the start that wrote the file may have been killed before it did so
        return load_calibration(path)
    if knows_labels(config.from_, config.source):
        log.warning(
            f"The probabilities of this run are not calibrated: {config.from_} was trained on the same labels, so a "
            "twin would know the images that it leaves out. Hold out images with --val 0.1."
        )
        return None
    dataset = stores.train.dataset
    groups, _ = group_look_alikes(dataset, config.data, stores.train.facts)
    held = hold_out(dataset.labels, groups, len(dataset), HELD_OUT, config.hold_out_seed())
    if run.has_checkpoint or not held.any():
        reason = "it began without" if run.has_checkpoint else "there are too few images"
        log.warning(f"The probabilities of this run are not calibrated: {reason}.")
        return None
    twin = scale_length(config, SHARE)
    log.info(
        f"Calibration: training a twin for {twin.epochs} of {config.epochs} epochs, without {held.sum():,} images. The "
        "run itself follows, with all images."
    )
    own = deadline and deadline.share(TWIN_WORK / (1 + TWIN_WORK), SHARE, add_compile_time=True)
    calibration = _train_twin(twin, stores.train, held, build, run, own)
    free_memory()  # a compiled twin is part of a reference cycle, and the run needs its memory
    if run.directory.writes:
        write_file(path, save({name: value.contiguous() for name, value in vars(calibration).items()}))
    _delete_twin(run)
    return calibration


def scale_length(config: LabelledConfig, factor: float) -> LabelledConfig:
    """Multiply the epochs of a run, its schedules and the memory of its averaged weights."""
    optim, epochs = config.optim, max(1, round(factor * config.epochs))
    factor = epochs / config.epochs
    schedule = optim.schedule_epochs and max(epochs, round(factor * optim.schedule_epochs))
    warmup = factor * optim.warmup(config.epochs)
    optim = replace(optim, warmup_epochs=warmup, schedule_epochs=schedule, ema=optim.ema ** (1 / factor))
    return replace(config, epochs=epochs, optim=optim)


def load_calibration(path: Path) -> Calibration:
    """Load the outputs of a twin; raise InvalidFile if they are not what `calibrate` saved."""
    found = read_safetensors(path)
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    count, classes = shapes["logits"] if len(shapes.get("logits", ())) == 2 else (0, 0)
    fits = shapes.get("labels") in ((count,), (count, classes)) and shapes.get("distances") == (count, DISTANCES)
    if not count or not fits or found.keys() != {"logits", "labels", "distances"} or not _has_types(**found):
        raise InvalidFile(path, "expected logits, labels and distances of the same images; delete it to train it again")
    return Calibration(**found)


def _has_types(logits: Tensor, labels: Tensor, distances: Tensor) -> bool:
    if (logits.dtype, distances.dtype) != (torch.float32, torch.float32):
        return False
    if labels.ndim == 2:
        return labels.dtype == torch.bool
    return labels.dtype == torch.int64 and bool(((labels >= 0) & (labels < logits.shape[1])).all())


def _delete_twin(run: OpenRun) -> None:
    if run.directory.writes:
        shutil.rmtree(run.directory.path / FOLDER, ignore_errors=True)


def is_larger_size(config: LabelledConfig) -> bool:
    """Return whether this is the stage at --final-size. It starts from a model that was trained on all images, so a
    twin of it would know those that it leaves out."""
    return (
        isinstance(config, FinetuneConfig) and config.keep_head and Path(config.from_ or "") == Path(config.out).parent
    )


def _train_twin(
    config: LabelledConfig, store: Store, held: np.ndarray, build: Build, run: OpenRun, deadline: Deadline | None
) -> Calibration:
    """Train in a separate directory, from which an interrupted twin is resumed. Its name contains the number of
    epochs, which may differ in a resumed run with --minutes."""
    directory = RunDirectory(run.directory.path / FOLDER / f"epochs-{config.epochs}", run.directory.writes)
    directory.log.path = None
    if directory.writes:
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
    run.processes.barrier()
    known, new = store.take(np.flatnonzero(~held)), store.take(np.flatnonzero(held))
    with torch.random.fork_rng(devices=[]):
        objective = build(config)
        fit(objective, known, config.fit_config(), run=directory, processes=run.processes, deadline=deadline)
    objective.eval()
    view = (config.eval_size, config.views.crop_fraction)
    familiarity = fit_familiarity(compute_features(objective.backbone, known, *view))
    logits, features = compute_logits_and_features(objective.backbone, objective.head, new, *view)
    return Calibration(logits, get_labels(new), familiarity.measure_distances(features))


def describe_calibration(stores: Stores, temperature: float, calibration: Calibration | None) -> str:
    """Describe on which images the probabilities were calibrated."""
    if stores.val is not None:
        return (
            f"Probabilities are calibrated on the {len(stores.val):,} held-out images: temperature {temperature:.2f}."
        )
    if calibration is not None:
        count = len(calibration.labels)
        return f"Probabilities are calibrated on {count:,} images that a twin left out: temperature {temperature:.2f}."
    return (
        "Probabilities are not calibrated, because no images are held out; --calibrate on or --val 0.1 calibrates them."
    )
