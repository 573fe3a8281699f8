"""The first stage: a network pre-trained on images without labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitling import data
from vitling.data.dataset import Splits, joined
from vitling.evaluation.bundle import save_bundle
from vitling.evaluation.watching import CollapseWatcher, watch_pretraining
from vitling.objectives.config import IDMMConfig, idmm_plan
from vitling.objectives.idmm import IDMM
from vitling.recipes import idmm
from vitling.recipes.auxiliary import attach_auxiliary, make_auxiliary
from vitling.recipes.config import PretrainConfig, overlaid
from vitling.recipes.running import (
    Stores,
    auxiliary_in_words,
    begin,
    figures,
    meta_of,
    new_backbone,
    running,
    setting,
    settle_network,
)
from vitling.training.config import OptimConfig
from vitling.training.loop import Outcome, fit
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.views.config import ViewsConfig

SIZE = 112  # pixels of a view


def pretrain(config: PretrainConfig) -> dict[str, Any]:
    """Pre-trains, saves the backbone, and gives what is also in the run's result.json."""
    return running(config, "pretrain", _pretrain)


def _pretrain(config: PretrainConfig, run: RunDirectory, processes: Processes) -> dict[str, Any]:
    splits = _open(config)
    config, notes = settle_network(config, splits.train, SIZE)
    config = _with_preset(config)
    backbone = new_backbone(config, config.drop_path)
    auxiliary = make_auxiliary(config, backbone)
    stores = begin(config, splits, backbone, notes, run, processes)
    objective = IDMM(backbone, idmm_plan(config.idmm, backbone.size), len(stores.train), config.idmm, config.seed)
    attach_auxiliary(objective, auxiliary, config)
    run.log.say(
        f"{config.method} on {len(stores.train)} images; {config.backbone} at {config.size} px"
        f"{auxiliary_in_words(config)}; {setting(stores)}"
    )
    watchers = [_watcher(config, stores, run)]
    outcome = fit(objective, stores.train, config.for_the_loop(), watchers, run=run, processes=processes)
    return _conclude(config, stores, objective, outcome, run)


def _open(config: PretrainConfig) -> Splits:
    """Labels are not trained on, so an unlabelled pool is as good as the rest."""
    splits = data.open(config.source, config.data, val=config.val, seed=config.seed)
    if splits.pool is None:
        return splits
    notes = [*splits.notes, f"{len(splits.train)} images and {len(splits.pool)} of the unlabelled pool."]
    return replace(splits, train=joined(splits.train, splits.pool), pool=None, notes=notes)


def _with_preset(config: PretrainConfig) -> PretrainConfig:
    stage = idmm.pretrain(config.backbone or "", config.preset, config.epochs, config.size or SIZE)
    return replace(
        config,
        optim=overlaid(stage.optim, config.optim, OptimConfig()),
        idmm=overlaid(stage.objective, config.idmm, IDMMConfig()),
    )


def _watcher(config: PretrainConfig, stores: Stores, run: RunDirectory) -> CollapseWatcher:
    every = config.watch_every or max(1, round(config.epochs / 40))
    stop = config.on_collapse == "stop"
    size, fraction = config.size or SIZE, ViewsConfig.crop_fraction
    return watch_pretraining(stores.train, stores.val, size, fraction, every, stop, run.log.warn, config.seed)


def _conclude(
    config: PretrainConfig, stores: Stores, objective: IDMM, outcome: Outcome, run: RunDirectory
) -> dict[str, Any]:
    objective.eval()
    if run.writes:
        save_bundle(run.path / "model", objective.backbone, None, meta_of(config, stores.train))
    result = {
        **figures(config, stores, outcome),
        "method": config.method,
        "preset": config.preset,
        "parameters": sum(p.numel() for p in objective.backbone.parameters()),
        "last": outcome.metrics,
    }
    run.write("result.json", result)
    return result
