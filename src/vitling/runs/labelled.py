"""Training on labels: open, decode, train, evaluate, save. Shared by `train` and `finetune`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.transfer import resize_backbone
from vitling.data.batches import compute_class_weights
from vitling.data.dataset import Splits
from vitling.data.store import Store
from vitling.evaluation.bundle import save_bundle
from vitling.evaluation.calibration import fit_temperature
from vitling.evaluation.classify import ValidationWatcher, get_labels
from vitling.evaluation.familiarity import SAMPLE, compute_features, compute_logits_and_features, fit_familiarity
from vitling.evaluation.metrics import summarise
from vitling.evaluation.mistakes import FILE as MISTAKES
from vitling.evaluation.mistakes import Mistake, find_mistakes, write_mistakes
from vitling.evaluation.predictions import SplitPredictions, make_predictions, save_predictions
from vitling.evaluation.trust import Calibration, Trust, measure_trust
from vitling.methods.supervised.loss import Supervised
from vitling.runs.calibration import TWIN_WORK, calibrate, describe_calibration, needs_twin
from vitling.runs.images import Stores, gather_stage_facts
from vitling.runs.network import attach_auxiliary, build_auxiliary, build_backbone, check_network, describe_auxiliary
from vitling.runs.opening import OpenRun
from vitling.runs.stage import begin_run, evaluate_weights, make_meta, open_test_split, summarise_fit
from vitling.runs.timing import Clock, familiar_images, fit_to_time
from vitling.settings.config import LabelledConfig
from vitling.settings.facts import Facts, Start
from vitling.settings.layers import Draft
from vitling.settings.resolve import Resolved, resolve
from vitling.training.loop import fit
from vitling.training.result import FitResult


@dataclass
class Stage:
    """Everything that training on labels needs, before the pace is measured."""

    resolved: Resolved[LabelledConfig]
    facts: Facts
    backbone: Backbone
    stores: Stores
    auxiliary: nn.Module | None
    head: nn.Linear | None  # to start from; None: a new one

    def build(self, config: LabelledConfig, backbone: Backbone, auxiliary: nn.Module | None) -> Supervised:
        objective = make_objective(config, backbone, self.stores.train)
        if self.head is not None:
            objective.head.load_state_dict(self.head.state_dict())
        attach_auxiliary(objective, auxiliary, config)
        return objective

    def build_trial(self, config: LabelledConfig) -> Supervised:
        """Build an objective for measurements, which leaves the backbone as it is."""
        return self.build(config, copy.deepcopy(self.backbone), copy.deepcopy(self.auxiliary))


def prepare_stage(
    run: OpenRun,
    draft: Draft,
    splits: Splits,
    head: nn.Linear | None = None,
    start: str | None = None,
    start_facts: Start | None = None,
) -> Stage:
    """Resolve the settings, build the network and decode the images. `start`: the directory of the stage before."""
    facts = gather_stage_facts(splits, run.has_gpu)
    if start_facts is not None:
        facts = replace(facts, start=start_facts)
    resolved = run.saved if run.saved is not None and run.has_checkpoint else resolve(draft, facts)
    backbone = build_backbone(resolved.config, resolved.config.objective.drop_path)
    check_network(resolved.config, backbone)
    auxiliary = build_auxiliary(resolved.config, backbone)
    stores = begin_run(resolved, splits, backbone, run, start, head is not None)
    return Stage(resolved, facts, backbone, stores, auxiliary, head)


def train_stage(stage: Stage, run: OpenRun, clock: Clock) -> dict[str, Any]:
    """Train, evaluate the last and the best weights, save both; return the entries of result.json."""
    work = 1 + TWIN_WORK if needs_twin(stage.resolved.config, stage.stores) else 1.0
    resolved, deadline = fit_to_time(
        stage.resolved, stage.facts, stage.build_trial, stage.stores, run, clock, work=work
    )
    config, stores = resolved.config, stage.stores
    calibration = calibrate(config, stores, stage.build_trial, run, deadline)
    deadline = deadline and deadline.share(1, 1)  # without the time of the twin
    objective = stage.build(config, stage.backbone, stage.auxiliary)
    _log_summary(config, stores, objective, run)
    run.write_settings(resolved)
    view = (config.eval_size, config.views.crop_fraction)
    watchers = [] if stores.val is None else [ValidationWatcher(stores.val, *view, config.eval_every or 1)]
    fit_config = config.fit_config(best=watchers[0].metric if watchers else None)
    fitted = fit(
        objective, stores.train, fit_config, watchers, run=run.directory, processes=run.processes, deadline=deadline
    )
    return _evaluate_and_save(config, stores, objective, fitted, run, calibration)


def make_objective(config: LabelledConfig, backbone: Backbone, store: Store) -> Supervised:
    dataset, settings = store.dataset, config.objective
    weights = None
    if settings.class_weights == "inverse" and dataset.labels is not None:
        weights = torch.from_numpy(compute_class_weights(dataset.labels, len(dataset.class_names))).float()
    plan = config.views.plan(backbone.size)
    return Supervised(backbone, plan, len(dataset.class_names), dataset.task == "multi", settings.smoothing, weights)


def _log_summary(config: LabelledConfig, stores: Stores, objective: Supervised, run: OpenRun) -> None:
    held_out = f", {len(stores.val)} held out" if stores.val else ", none held out"
    run.directory.log.info(
        f"{len(stores.train)} images{held_out}, {objective.classes} classes; {config.backbone} at {config.size} px, "
        f"{_count_parameters(objective) / 1e6:.2f} M parameters{describe_auxiliary(config)}; {stores.describe()}"
    )


def _count_parameters(objective: Supervised) -> int:
    """Count the parameters that are saved: backbone and head, not those of auxiliary terms."""
    return sum(p.numel() for part in (objective.backbone, objective.head) for p in part.parameters())


@dataclass
class _Evaluation:
    """Metrics and predictions of one set of weights."""

    epoch: int
    temperature: float
    trust: Trust
    splits: dict[str, dict[str, Any]]
    predictions: dict[str, SplitPredictions]
    mistakes: list[Mistake]

    def short(self) -> dict[str, Any]:
        """Return the figures for result.json, without the tables."""
        keep = (
            "top1",
            "top1_interval",
            "top5",
            "mean_per_class",
            "mean_average_precision",
            "log_loss",
            "calibration_error",
            "n",
        )
        numbers = {split: {k: v for k, v in full.items() if k in keep} for split, full in self.splits.items()}
        return {"epoch": self.epoch, "temperature": self.temperature, **numbers}


def _evaluate_and_save(
    config: LabelledConfig,
    stores: Stores,
    objective: Supervised,
    fitted: FitResult,
    run: OpenRun,
    calibration: Calibration | None,
) -> dict[str, Any]:
    """Evaluate and save the last epoch's weights and the best ones; return the entries of result.json."""
    directory, dataset, test = run.directory, stores.train.dataset, open_test_split(stores, fitted)
    max_images = SAMPLE if config.minutes is None else familiar_images(60 * config.minutes, fitted.images_per_second)

    def evaluate(name: str, epoch: int) -> _Evaluation:
        return _evaluate(config, objective, epoch, stores, test, calibration, max_images)

    def save(folder: str, found: _Evaluation) -> None:
        if directory.writes:
            backbone = resize_backbone(objective.backbone, config.eval_size)
            meta = make_meta(
                config,
                stores.train,
                task=dataset.task,
                class_names=dataset.class_names,
                crop_fraction=config.views.crop_fraction,
                size=config.eval_size,
                temperature=found.temperature,
            )
            save_bundle(directory.path / folder, backbone, objective.head, meta, found.trust)

    evaluated = evaluate_weights(objective, fitted, evaluate, save)
    directory.log.info(describe_calibration(stores, evaluated["last"].temperature, calibration))
    directory.write("evaluation.json", {name: e.splits for name, e in evaluated.items()})
    if directory.writes:
        predictions = {f"{name}/{split}": p for name, e in evaluated.items() for split, p in e.predictions.items()}
        save_predictions(directory.path, predictions)
        write_mistakes(directory.path / MISTAKES, evaluated["last"].mistakes)
    return {
        **summarise_fit(config, stores, fitted),
        "method": "supervised",
        "parameters": _count_parameters(objective),
        "classes": objective.classes,
        "evaluated_at": config.eval_size,
        **{name: e.short() for name, e in evaluated.items()},
    }


def _evaluate(
    config: LabelledConfig,
    objective: Supervised,
    epoch: int,
    stores: Stores,
    test: Store | None,
    calibration: Calibration | None,
    max_images: int,
) -> _Evaluation:
    """Evaluate on val and test. The temperature is fitted on val, or on the calibration; without either it stays 1.

    Familiarity is measured on at most `max_images` training images.
    """
    temperature, trust, splits, predictions, mistakes = 1.0, Trust(), {}, {}, list[Mistake]()
    view = (config.eval_size, config.views.crop_fraction)
    if calibration is not None or stores.val is not None:
        known = compute_features(objective.backbone, stores.train, *view, max_images=min(max_images, SAMPLE))
        familiarity = fit_familiarity(known)
    if calibration is not None:
        temperature = fit_temperature(calibration.logits, calibration.labels)
        trust = measure_trust(calibration, familiarity, temperature)
    for name, store in (("val", stores.val), ("test", test)):
        if store is None:
            continue
        logits, features = compute_logits_and_features(objective.backbone, objective.head, store, *view)
        labels, dataset = get_labels(store), store.dataset
        if name == "val":
            temperature = fit_temperature(logits, labels)
            distances = familiarity.measure_distances(features)
            trust = measure_trust(Calibration(logits, labels, distances), familiarity, temperature)
        splits[name] = summarise(logits, labels, dataset.class_names, temperature)
        predictions[name] = make_predictions(logits.numpy(), labels.numpy(), dataset.keys, dataset.groups)
        mistakes += find_mistakes(logits, labels, dataset.keys, dataset.class_names, temperature, name)
    return _Evaluation(epoch, temperature, trust, splits, predictions, mistakes)
