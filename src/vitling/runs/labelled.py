"""Training on labels: open, decode, train, evaluate, save."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.transfer import resize_backbone
from vitling.data.batches import compute_class_weights
from vitling.data.dataset import Splits
from vitling.data.store import Store
from vitling.evaluation.bundle import BundleMeta, save_bundle
from vitling.evaluation.calibration import fit_temperature
from vitling.evaluation.classify import ValidationWatcher, compute_logits, get_labels
from vitling.evaluation.metrics import summarise
from vitling.evaluation.predictions import SplitPredictions, make_predictions, save_predictions
from vitling.methods.supervised.loss import Supervised
from vitling.runs.auxiliary import attach_auxiliary, make_auxiliary
from vitling.runs.pacing import fitted
from vitling.runs.running import (
    Stores,
    auxiliary_in_words,
    begin,
    check_test_size,
    figures,
    meta_of,
    new_backbone,
    open_labelled,
    setting,
    settle_network,
)
from vitling.settings.config import LabelledConfig
from vitling.training.loop import fit
from vitling.training.processes import Processes
from vitling.training.result import FitResult
from vitling.training.rundir import RunDirectory


def train_in(
    config: LabelledConfig,
    run: RunDirectory,
    processes: Processes,
    began: float | None = None,
    notes: Sequence[str] = (),
    start: str | None = None,
) -> dict[str, Any]:
    """Trains, evaluates, and gives what is also in the run's result.json. `began` is when the clock of --minutes
    started, `notes` is what to say first, `start` the stage before this one."""
    began = time.monotonic() if began is None else began
    splits = open_labelled(config)
    splits.notes += notes
    return train_on(config, splits, run, processes, None, began, start)


def train_on(
    config: LabelledConfig,
    splits: Splits,
    run: RunDirectory,
    processes: Processes,
    head: nn.Linear | None = None,
    began: float | None = None,
    start: str | None = None,
) -> dict[str, Any]:
    """`head`: to start from; otherwise it is a new one."""
    began = time.monotonic() if began is None else began
    stage = ready(config, splits, run, processes, head, start)
    stores, objective = stage.stores, stage.objective
    _introduce(stage.config, stores, objective, run)
    config = fitted(stage.config, objective, stores, run, processes, began)
    attach_auxiliary(objective, stage.auxiliary, config)  # again: its schedule is laid out for these epochs
    looks = 50 if config.minutes is None else 10
    config = replace(config, eval_every=config.eval_every or max(1, round(config.epochs / looks)))
    run.update_config(config)
    watcher = _validation(config, stores)
    settings = config.for_the_loop(best=watcher.metric if watcher else None)
    outcome = fit(objective, stores.train, settings, [watcher] if watcher else [], run=run, processes=processes)
    return _conclude(config, stores, objective, outcome, run)


@dataclass
class Ready:
    """All that training needs. In the config what was left open is settled, but for how many epochs fit into a time."""

    config: LabelledConfig
    stores: Stores
    objective: Supervised
    auxiliary: nn.Module | None


def ready(
    config: LabelledConfig,
    splits: Splits,
    run: RunDirectory,
    processes: Processes,
    head: nn.Linear | None = None,
    start: str | None = None,
) -> Ready:
    config, notes = settle_network(config, splits.train, view=224)
    backbone = new_backbone(config, config.objective.drop_path)
    check_test_size(config, backbone)
    auxiliary = make_auxiliary(config, backbone)
    stores = begin(config, splits, backbone, notes, run, processes, head is not None, start)
    objective = make_objective(config, backbone, stores.train)
    if head is not None:
        objective.head.load_state_dict(head.state_dict())
    attach_auxiliary(objective, auxiliary, config)
    return Ready(config, stores, objective, auxiliary)


def _validation(config: LabelledConfig, stores: Stores) -> ValidationWatcher | None:
    if stores.val is None:
        return None
    return ValidationWatcher(stores.val, config.eval_size, config.views.crop_fraction, config.eval_every or 1)


def make_objective(config: LabelledConfig, backbone: Backbone, store: Store) -> Supervised:
    dataset, settings = store.dataset, config.objective
    weights = None
    if settings.class_weights == "inverse" and dataset.labels is not None:
        weights = torch.from_numpy(compute_class_weights(dataset.labels, len(dataset.class_names))).float()
    plan = config.views.plan(backbone.size)
    return Supervised(backbone, plan, len(dataset.class_names), dataset.task == "multi", settings.smoothing, weights)


def _introduce(config: LabelledConfig, stores: Stores, objective: Supervised, run: RunDirectory) -> None:
    held = f", {len(stores.val)} held out" if stores.val else ", none held out"
    run.log.info(
        f"{len(stores.train)} images{held}, {objective.classes} classes; {config.backbone} at {config.size} px, "
        f"{_parameters(objective) / 1e6:.2f} M parameters{auxiliary_in_words(config)}; {setting(stores)}"
    )


def _parameters(objective: Supervised) -> int:
    """Of what is saved: auxiliary terms have their own, which are not."""
    return sum(p.numel() for part in (objective.backbone, objective.head) for p in part.parameters())


@dataclass
class _Evaluation:
    """Metrics and predictions of one set of weights on the splits."""

    epoch: int
    temperature: float
    splits: dict[str, dict[str, Any]]
    predictions: dict[str, SplitPredictions]

    def short(self) -> dict[str, Any]:
        """Return the metrics that result.json has: all but the tables."""
        keep = ("top1", "top5", "mean_per_class", "mean_average_precision", "log_loss", "calibration_error", "n")
        numbers = {split: {k: v for k, v in full.items() if k in keep} for split, full in self.splits.items()}
        return {"epoch": self.epoch, "temperature": self.temperature, **numbers}


def _conclude(
    config: LabelledConfig, stores: Stores, objective: Supervised, outcome: FitResult, run: RunDirectory
) -> dict[str, Any]:
    """Evaluate and save the last epoch's weights and the best ones, and write result.json."""
    objective.eval()
    to_evaluate: list[tuple[str, str, int, dict[str, torch.Tensor] | None]] = [("last", "model", config.epochs, None)]
    if outcome.best:
        to_evaluate.append(("best", "best", outcome.best.epoch, outcome.best.weights))
    test = (
        stores.open_test(f"final evaluation of {' and '.join(j[0] for j in to_evaluate)}")
        if stores.splits.has_test
        else None
    )
    evaluations = {}
    for name, folder, epoch, weights in to_evaluate:
        if weights is not None:
            objective.load_state_dict(weights)
        evaluations[name] = _evaluate(config, objective, epoch, stores.val, test)
        if run.writes:
            backbone = resize_backbone(objective.backbone, config.eval_size)
            save_bundle(run.path / folder, backbone, objective.head, _meta(config, stores.train, evaluations[name]))
    run.write("evaluation.json", {name: j.splits for name, j in evaluations.items()})
    if run.writes:
        predictions = {f"{name}/{split}": p for name, e in evaluations.items() for split, p in e.predictions.items()}
        save_predictions(run.path, predictions)
    result = {
        **figures(config, stores, outcome),
        "method": "supervised",
        "parameters": _parameters(objective),
        "classes": objective.classes,
        "judged_at": config.eval_size,
        **{name: j.short() for name, j in evaluations.items()},
    }
    run.write("result.json", result)
    return result


def _evaluate(
    config: LabelledConfig, objective: Supervised, epoch: int, val: Store | None, test: Store | None
) -> _Evaluation:
    """Evaluate on both splits; the temperature is fitted on validation and stays 1 without one."""
    temperature, splits, predictions = 1.0, {}, {}
    for name, store in (("val", val), ("test", test)):
        if store is None:
            continue
        logits = compute_logits(objective.logits, store, config.eval_size, config.views.crop_fraction)
        if name == "val":
            temperature = fit_temperature(logits, get_labels(store))
        splits[name] = summarise(logits, get_labels(store), store.dataset.class_names, temperature)
        dataset = store.dataset
        predictions[name] = make_predictions(logits.numpy(), get_labels(store).numpy(), dataset.keys, dataset.groups)
    return _Evaluation(epoch, temperature, splits, predictions)


def _meta(config: LabelledConfig, store: Store, evaluation: _Evaluation) -> BundleMeta:
    return meta_of(
        config,
        store,
        task=store.dataset.task,
        class_names=store.dataset.class_names,
        crop_fraction=config.views.crop_fraction,
        size=config.eval_size,
        temperature=evaluation.temperature,
    )
