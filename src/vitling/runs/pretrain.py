"""Pre-training: learn from the images, without labels or, for two baselines, with them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from vitling.backbones.backbone import Backbone
from vitling.data.store import Store
from vitling.evaluation.bundle import save_bundle
from vitling.evaluation.watching import CollapseWatcher, watch_pretraining
from vitling.methods import METHODS
from vitling.methods.method import TrainingData
from vitling.objectives.moments import Watcher
from vitling.objectives.objective import Objective
from vitling.runs.images import Stores, gather_stage_facts, open_for_pretraining
from vitling.runs.network import attach_auxiliary, build_auxiliary, build_backbone, check_network, describe_auxiliary
from vitling.runs.opening import OpenRun
from vitling.runs.report import train_and_report
from vitling.runs.stage import begin_run, make_meta, summarise_fit
from vitling.runs.timing import Clock, fit_to_time
from vitling.settings.config import PretrainConfig
from vitling.settings.continuing import read_previous
from vitling.settings.plan import PRETRAIN_VIEW
from vitling.settings.pretraining import default_epochs
from vitling.settings.resolve import resolve
from vitling.training.feed import choose_batch_sizes
from vitling.training.loop import fit
from vitling.training.result import FitResult
from vitling.views.config import ViewsConfig


def pretrain(request: PretrainConfig) -> dict[str, Any]:
    """Pre-train, save the backbone, and return what result.json contains."""
    return train_and_report(request, "pretrain", pretrain_in)


def pretrain_in(
    run: OpenRun[PretrainConfig],
    clock: Clock | None = None,
    min_epochs: int = 1,
    make_watcher: Callable[[int], Watcher] | None = None,
) -> dict[str, Any]:
    """Train in an open run directory. `make_watcher` makes a further watcher, for the epochs of the first one."""
    clock, processes = clock or Clock(), run.processes
    splits = open_for_pretraining(run.draft.config, run.source)
    facts = gather_stage_facts(splits, run.has_gpu)
    if not run.has_checkpoint:
        facts = replace(facts, previous=read_previous(run.draft.config))
    resolved = run.saved or resolve(run.draft, facts)
    backbone = build_backbone(resolved.config, resolved.config.drop_path)
    check_network(resolved.config, backbone)
    auxiliary = build_auxiliary(resolved.config, backbone)
    stores = begin_run(resolved, splits, backbone, run)
    _log_summary(resolved.config, backbone, stores, run)
    resolved, deadline = fit_to_time(
        resolved,
        facts,
        lambda config: build_objective(config, copy.deepcopy(backbone), stores.train, copy.deepcopy(auxiliary)),
        stores,
        run,
        clock,
        min_epochs,
    )
    config = resolved.config
    check_network(config, backbone)
    run.write_settings(resolved)
    objective = build_objective(config, backbone, stores.train, auxiliary)
    watcher = _make_watcher(config, stores, run)
    watchers = [watcher, *([make_watcher(watcher.every)] if make_watcher else [])]
    start = Path(config.continue_from) if config.continue_from else None
    fitted = fit(
        objective,
        stores.train,
        config.fit_config(),
        watchers,
        run=run.directory,
        processes=processes,
        start=start,
        deadline=deadline,
    )
    return run.finish(_evaluate_and_save(config, stores, objective, fitted, watcher.warnings, run))


def build_objective(
    config: PretrainConfig, backbone: Backbone, store: Store, auxiliary: nn.Module | None = None
) -> Objective:
    method, plan = METHODS[config.method], config.make_views(backbone.size)
    objective = method.build(backbone, plan, method.config_of(config), _describe(config, store))
    attach_auxiliary(objective, auxiliary, config)
    return objective


def _describe(config: PretrainConfig, store: Store) -> TrainingData:
    dataset, method = store.dataset, METHODS[config.method]
    compares = method.compares_images and config.optim.accumulate == 1
    return TrainingData(
        images=len(store),
        classes=len(dataset.class_names),
        labels=dataset.labels if dataset.labels is not None else dataset.partial_labels,
        multi_label=dataset.task == "multi",
        seed=config.seed,
        batch_sizes=choose_batch_sizes(config.fit_config(), len(store), store.device) if compares else (),
    )


def _log_summary(config: PretrainConfig, backbone: Backbone, stores: Stores, run: OpenRun) -> None:
    """Log what is trained, and remarks on settings that have no effect, take long or may mislead."""
    log, method, images = run.directory.log, METHODS[config.method], len(stores.train)
    auxiliary = describe_auxiliary(config)
    log.info(
        f"{config.method} on {images} images; {config.backbone} at {config.size} px{auxiliary}; {stores.describe()}"
    )
    device = stores.train.device.type
    for remark in method.remarks(method.config_of(config), backbone, device) if method.remarks else ():
        (log.warning if remark.is_warning else log.info)(remark.text)
    is_default = config.epochs == default_epochs(method, images) and "epochs" not in config.explicit
    if is_default and config.minutes is None and device == "cpu":
        log.info(f"{config.epochs} epochs take long on a CPU; --minutes 60 trains as many as fit.")
    if config.views_budget is not None and config.views_budget < images * config.make_views(PRETRAIN_VIEW).crops:
        log.warning(f"--views-budget {config.views_budget:g} is less than one epoch; training one epoch.")
    for words in config.views.list_unused(config.make_method_views(config.size or PRETRAIN_VIEW)):
        log.warning(f"No effect on the views of {config.method}: {words}.")


def _make_watcher(config: PretrainConfig, stores: Stores, run: OpenRun) -> CollapseWatcher:
    every = config.watch_every or 1
    stop, size = config.on_collapse == "stop", config.size or PRETRAIN_VIEW
    return watch_pretraining(
        stores.train, stores.val, size, ViewsConfig.crop_fraction, every, stop, run.directory.log.warning, config.seed
    )


def _evaluate_and_save(
    config: PretrainConfig, stores: Stores, objective: Objective, fitted: FitResult, warnings: list[str], run: OpenRun
) -> dict[str, Any]:
    objective.eval()
    if run.directory.writes:
        save_bundle(run.directory.path / "model", objective.final_backbone, None, make_meta(config, stores.train))
    return {
        **summarise_fit(config, stores, fitted),
        "method": config.method,
        "labelled": stores.train.dataset.has_labels,
        "preset": config.preset,
        "parameters": sum(p.numel() for p in objective.final_backbone.parameters()),
        "last": fitted.metrics,
        "warnings": warnings,
    }
