"""`vitling detect` and `vitling segment`: open, plan, train, evaluate, save."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from vitling.backbones.backbone import Backbone
from vitling.data.annotations.split import AnnotatedSplit
from vitling.data.store import Store
from vitling.dense.objective import DenseObjective
from vitling.errors import UserError
from vitling.runs.dense_bundle import save_dense
from vitling.runs.dense_evaluation import ScoreWatcher, SplitScores, evaluate_store
from vitling.runs.dense_images import AnnotatedSplits, find_start, make_targets, match_store, open_dense
from vitling.runs.dense_model import LONGEST_FACTOR, DenseMeta, DenseModel, build_objective
from vitling.runs.dense_pictures import FOLDER, draw_worst
from vitling.runs.images import Stores
from vitling.runs.network import build_backbone
from vitling.runs.opening import OpenRun
from vitling.runs.report import train_and_report
from vitling.runs.stage import begin_run, evaluate_weights, open_test_split, summarise_fit
from vitling.runs.timing import Clock, fit_to_time
from vitling.settings.dense import DenseConfig, DetectConfig, SegmentConfig
from vitling.settings.facts import Facts
from vitling.settings.resolve import Resolved, resolve
from vitling.training.loop import fit
from vitling.training.result import FitResult


def train_dense(request: DetectConfig | SegmentConfig) -> dict[str, Any]:
    """Train a detector or a segmentation network, evaluate it, and return what result.json contains."""
    verb = "detect" if isinstance(request, DetectConfig) else "segment"
    return train_and_report(request, verb, _train)


@dataclass
class _Stage:
    """Everything that training a detector or a segmentation network needs, before the pace is measured."""

    resolved: Resolved[Any]
    facts: Facts
    backbone: Backbone
    splits: AnnotatedSplits
    stores: Stores
    train: AnnotatedSplit
    targets: Any
    meta: DenseMeta

    def build(self, config: DenseConfig, backbone: Backbone) -> DenseObjective:
        plan = config.make_views(config.size or 0)
        pasted = config.copy_paste if isinstance(config, DetectConfig) else 0.0
        return build_objective(backbone, plan, self.meta, self.targets, config.freeze or 0, pasted)

    def build_trial(self, config: DenseConfig) -> DenseObjective:
        """Build an objective for measurements, which leaves the backbone as it is."""
        return self.build(config, copy.deepcopy(self.backbone))


def _prepare(run: OpenRun[Any]) -> _Stage:
    """Resolve the settings, build the network and decode the images."""
    splits = open_dense(run.draft.config)
    facts = splits.gather_facts(run.has_gpu, find_start(run.draft.config))
    resolved = run.saved if run.saved is not None and run.has_checkpoint else resolve(run.draft, facts)
    config = resolved.config
    if isinstance(config, DetectConfig) and config.copy_paste and not _has_masks(config, splits.train):
        raise UserError(f"--copy-paste {config.copy_paste:g} needs masks, and there are boxes only. Leave it out.")
    backbone = build_backbone(config, config.drop_path)
    stores = begin_run(resolved, splits.plain, backbone, run)
    train = match_store(splits.train, stores.train)
    meta = make_meta(config, train, stores.train)
    return _Stage(resolved, facts, backbone, splits, stores, train, make_targets(config, train, stores.train), meta)


def _has_masks(config: DenseConfig, train: AnnotatedSplit) -> bool:
    instances = train.instances
    return (
        isinstance(config, DetectConfig) and config.masks and instances is not None and instances.segments is not None
    )


def make_meta(config: Any, train: AnnotatedSplit, store: Store) -> DenseMeta:
    """Describe the model that these settings train."""
    is_detector = isinstance(config, DetectConfig)
    shorter = config.shorter[1] if is_detector else config.size
    return DenseMeta(
        task="detect" if is_detector else "segment",
        model=config.model if is_detector else "upernet",
        class_names=train.class_names,
        size=config.size,
        shorter=shorter,
        longest=config.longest if is_detector else LONGEST_FACTOR * config.size,
        store_size=store.size,
        mean=store.mean,
        std=store.std,
        width=config.width,
        masks=_has_masks(config, train),
        scales=(1.0,) if is_detector else config.test_scales,
        flip=not is_detector and config.test_flip,
        channels=config.data.channels,
        bits=config.data.bits,
        max_pixels=config.data.max_pixels,
    )


def _train(run: OpenRun[Any]) -> dict[str, Any]:
    """Train, evaluate the last and the best weights, save both; return what result.json contains."""
    clock, stage = Clock(), _prepare(run)
    stores = stage.stores
    resolved, deadline = fit_to_time(stage.resolved, stage.facts, stage.build_trial, stores, run, clock)
    config = resolved.config
    objective = stage.build(config, stage.backbone)
    _log_summary(stage, config, objective, run)
    run.write_settings(resolved)
    held = stores.val
    val = None if held is None or stage.splits.val is None else match_store(stage.splits.val, held)
    watchers = [] if held is None or val is None else [ScoreWatcher(stage.meta, held, val, config.eval_every)]
    fit_config = config.fit_config(best=watchers[0].metric if watchers else None)
    fitted = fit(
        objective, stores.train, fit_config, watchers, run=run.directory, processes=run.processes, deadline=deadline
    )
    return run.finish(_evaluate_and_save(stage, config, objective, val, fitted, run))


def _log_summary(stage: _Stage, config: DenseConfig, objective: DenseObjective, run: OpenRun) -> None:
    parts = list(objective.parameters())
    trained = sum(p.numel() for p in parts if p.requires_grad) / sum(p.numel() for p in parts)
    frozen = "" if trained > 0.999 else f", {trained:.0%} of them trained"
    held_out = f", {len(stage.stores.val)} held out" if stage.stores.val else ", none held out"
    what = f"{stage.meta.model} on {config.backbone} at {config.size} px"
    run.directory.log.info(
        f"{len(stage.stores.train)} images{held_out}, {len(stage.meta.class_names)} classes; {what}, "
        f"{sum(p.numel() for p in parts) / 1e6:.2f} M parameters{frozen}; {stage.stores.describe()}"
    )


def _evaluate_and_save(
    stage: _Stage, config: Any, objective: DenseObjective, val: AnnotatedSplit | None, fitted: FitResult, run: OpenRun
) -> dict[str, Any]:
    """Evaluate and save the last epoch's weights and the best ones; return the entries of result.json."""
    stores, directory, log = stage.stores, run.directory, run.directory.log
    model, pairs = DenseModel(objective, stage.meta), {"val": (stores.val, val)}
    if (test := open_test_split(stores, fitted)) is not None and stage.splits.test is not None:
        pairs["test"] = test, match_store(stage.splits.test, test)

    def evaluate(name: str, epoch: int) -> tuple[int, dict[str, SplitScores]]:
        scores = {}
        for split, (store, annotated) in pairs.items():
            if store is not None and annotated is not None:
                with log.progress(f"Evaluating {name} on {split}", len(store)) as progress:
                    scores[split] = evaluate_store(model, store, annotated, progress)
                if name == "last" and directory.writes:
                    draw_worst(directory.path / FOLDER, scores[split], annotated, split, config.data)
        return epoch, scores

    def save(folder: str, found: Any) -> None:
        if directory.writes:
            save_dense(directory.path / folder, model)

    found = evaluate_weights(objective, fitted, evaluate, save)
    full = {name: {split: one.full for split, one in scores.items()} for name, (_, scores) in found.items()}
    directory.write("evaluation.json", full)
    return {
        **summarise_fit(config, stores, fitted),
        "method": stage.meta.model,
        "task": stage.meta.task,
        "parameters": sum(p.numel() for p in objective.parameters()),
        "categories": len(stage.meta.class_names),
        **{
            name: {"epoch": epoch, **{split: one.short for split, one in scores.items()}}
            for name, (epoch, scores) in found.items()
        },
    }
