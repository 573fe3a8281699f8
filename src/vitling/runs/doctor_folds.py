"""`vitling doctor --folds K`: train the second stage of a run K times, each time without one part of the images."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitling import data
from vitling.console import Log
from vitling.data.dataset import Splits
from vitling.data.sources import read_source
from vitling.data.sources.corrections import hash_labels
from vitling.data.sources.schemes import READERS
from vitling.data.splits import Spec
from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.classify import compute_logits
from vitling.evaluation.model import Model
from vitling.runs.evaluate import decode_split, match_model_input
from vitling.runs.finetune import finetune_in
from vitling.runs.opening import open_run
from vitling.runs.origins import knows_labels
from vitling.settings.config import LabelledConfig
from vitling.settings.doctor import DoctorConfig
from vitling.settings.stages import make_fold_stage
from vitling.training.compilation import free_memory
from vitling.training.processes import choose_device, init_processes

_AT_ONCE = 3  # on a GPU: one starts while another trains


def predict_by_folds(
    config: DoctorConfig, settings: LabelledConfig, splits: Splits, start: Path | None, out: Path, log: Log
) -> tuple[Store, np.ndarray]:
    """Train all folds and classify each fold with the network that was trained without it.

    Returns the decoded images and their probabilities [N, C] (NaN: in no fold).
    """
    out = out / "folds" / _name_folds(config, settings)
    dataset, source = splits.train, read_source(settings.source, settings.data, settings.labels)
    train_folds(config, settings, start, out, log)
    rows = {int(row): i for i, row in enumerate(dataset.rows)}
    probabilities = np.full((len(dataset), len(dataset.class_names)), np.nan)
    for fold in range(config.folds):
        fold_rows, found = _predict_fold(config, settings, source, out / f"fold-{fold}", fold, log)
        probabilities[[rows[int(row)] for row in fold_rows]] = found
    model = load(out / "fold-0", device="cpu")
    store = decode_split(model, dataset, "train", match_model_input(model, settings.data), True, log, splits.bad)
    return store, probabilities[[rows[int(row)] for row in store.dataset.rows]]


def _name_folds(config: DoctorConfig, settings: LabelledConfig) -> str:
    """Name the folder after all that decides which images are in which fold, and with which labels."""
    corrected = f"-labels-{hash_labels(settings.labels)[:12]}" if settings.labels else ""
    return f"{config.folds}-seed{config.seed}{corrected}"


def train_folds(config: DoctorConfig, settings: LabelledConfig, start: Path | None, out: Path, log: Log) -> None:
    """Train the folds, several at once on a GPU. Folds that have finished already are kept."""
    device = choose_device(config.device)
    settings = replace(
        settings,
        loop=replace(settings.loop, device=str(device), trackers=()),
        split_seed=config.seed,
        allow_bad=config.allow_bad or settings.allow_bad,
    )
    if start is None and knows_labels(settings.from_, settings.source):
        raise UserError(
            f"The run started from {settings.from_}, which was trained on the same labels. Use a run that starts from "
            "random weights or from a run of `vitling pretrain`."
        )
    weights = str(start) if start is not None else settings.from_
    train = partial(_train_fold, settings, config.folds, out, weights)
    at_once = min(config.folds, config.at_once or (_AT_ONCE if device.type == "cuda" else 1))
    if at_once == 1:
        for fold in range(config.folds):
            log.info(f"Training fold {fold + 1} of {config.folds}.")
            train(fold)
        return
    log.info(f"Training {config.folds} folds, {at_once} at once; their logs are in {out}.")
    with ProcessPoolExecutor(at_once, get_context("spawn"), _register, (dict(READERS),)) as pool:
        list(pool.map(train, range(config.folds)))


def _register(readers: dict) -> None:
    READERS.update(readers)


def _train_fold(settings: LabelledConfig, folds: int, out: Path, start: str | None, fold: int) -> None:
    stage = make_fold_stage(settings, fold, folds, out / f"fold-{fold}", start)
    with init_processes(settings.loop.device) as processes, open_run(stage, "finetune", processes) as run:
        if not run.result:
            finetune_in(run)
    free_memory()


def _predict_fold(
    config: DoctorConfig, settings: LabelledConfig, source: Spec, run: Path, fold: int, log: Log
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the fold's readable images and their probabilities."""
    model = load(run, device=choose_device(config.device))
    fold_config = replace(match_model_input(model, settings.data), folds=config.folds, fold=fold)
    held = data.open(source, fold_config, seed=config.seed).val
    if held is None:
        raise UserError(f"Fold {fold} has no images; use fewer folds.")
    if model.meta.class_names != held.class_names:
        raise UserError(f"{run} was trained on other classes than the data has. Delete {run.parent} to train it again.")
    store = decode_split(model, held, "val", fold_config, True, log)
    classify = partial(_classify_both_ways, model) if settings.views.flip else model.logits
    logits = compute_logits(classify, store, model.meta.size, model.meta.crop_fraction)
    return store.dataset.rows, torch.softmax(logits.double() / model.meta.temperature, dim=1).numpy()


def _classify_both_ways(model: Model, images: Tensor) -> Tensor:
    """Average the logits of images and their mirror images, so that one unlucky view rarely makes a suspect."""
    return (model.logits(images) + model.logits(images.flip(-1))) / 2
