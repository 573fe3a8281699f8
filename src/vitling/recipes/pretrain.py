"""The first stage: a network pre-trained on images without labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vitling import data
from vitling.backbones.backbone import Backbone, create
from vitling.data.dataset import Dataset, Splits, joined
from vitling.data.store import choose_size
from vitling.evaluation.bundle import save_bundle
from vitling.evaluation.meta import BundleMeta
from vitling.evaluation.watching import CollapseWatcher, watch_pretraining
from vitling.objectives.config import IDMMConfig, idmm_plan
from vitling.objectives.idmm import IDMM
from vitling.recipes import idmm
from vitling.recipes.auxiliary import attach_auxiliary, make_auxiliary, settle_auxiliary
from vitling.recipes.config import PretrainConfig, overlaid
from vitling.recipes.running import Stores, amount, begun, prepare, running, start_from
from vitling.training.config import FitConfig, OptimConfig
from vitling.training.loop import Outcome, fit
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.views.config import ViewsConfig

SIZE, TINY = 112, 64  # pixels of a view; up to the second the small network


def pretrain(config: PretrainConfig) -> dict[str, Any]:
    """Pre-trains, saves the backbone, and gives what is also in the run's result.json."""
    return running(config, "pretrain", _pretrain)


def _pretrain(config: PretrainConfig, run: RunDirectory, processes: Processes) -> dict[str, Any]:
    splits = _open(config)
    config, chosen = _settle(config, splits.train)
    backbone = _backbone(config)
    chosen += start_from(backbone, None if config.resume and begun(run) else config.from_)
    auxiliary = make_auxiliary(config, backbone)
    prepare(config, run, processes)  # not before: --overwrite deletes, and a name or a size may have been mistyped
    for note in (*splits.notes, *chosen):
        run.log.say(note)
    run.start(config, config.loop.trackers)
    stores = Stores(config, splits, run, processes)
    objective = IDMM(backbone, idmm_plan(config.idmm, backbone.size), len(stores.train), config.idmm, config.seed)
    attach_auxiliary(objective, auxiliary, config)
    _introduce(config, stores, run)
    settings = FitConfig(config.epochs, config.batch, config.seed, config.optim, config.loop, config.checkpoint)
    outcome = fit(objective, stores.train, settings, [_watcher(config, stores, run)], run=run, processes=processes)
    return _conclude(config, stores, objective, outcome, run)


def _open(config: PretrainConfig) -> Splits:
    """Labels do not matter here, so an unlabelled pool is as good as the rest."""
    splits = data.open(config.source, config.data, val=config.val, seed=config.seed)
    if splits.pool is None:
        return splits
    notes = [*splits.notes, f"{len(splits.train)} images and {len(splits.pool)} of the unlabelled pool."]
    return replace(splits, train=joined(splits.train, splits.pool), pool=None, notes=notes)


def _settle(config: PretrainConfig, train: Dataset) -> tuple[PretrainConfig, list[str]]:
    """Fills in what was left open, from the images and the preset, with a note that says so."""
    longer = choose_size(train, largest_view=SIZE)  # at most 192: what the images have, if that is less
    size = config.size or (SIZE if longer >= 80 else max(32, -(-longer // 32) * 32))
    backbone = config.backbone or ("vit_micro_patch4_32" if size <= TINY else "pvt_v2_b0")
    stage = idmm.pretrain(backbone, config.preset, config.epochs, size)
    assert isinstance(stage.objective, IDMMConfig)
    settled = replace(
        config,
        size=size,
        backbone=backbone,
        store_size=config.store_size or choose_size(train, size),
        optim=overlaid(stage.optim, config.optim, OptimConfig()),
        idmm=overlaid(stage.objective, config.idmm, IDMMConfig()),
    )
    chosen = [f"--backbone {backbone}"] * (config.backbone is None) + [f"--size {size}"] * (config.size is None)
    return settle_auxiliary(settled, backbone), [f"Chosen from the images: {' '.join(chosen)}."] if chosen else []


def _watcher(config: PretrainConfig, stores: Stores, run: RunDirectory) -> CollapseWatcher:
    every = config.watch_every or max(1, round(config.epochs / 40))
    stop = config.on_collapse == "stop"
    size, fraction = config.size or SIZE, ViewsConfig.crop_fraction
    return watch_pretraining(stores.train, stores.val, size, fraction, every, stop, run.log.warn, config.seed)


def _backbone(config: PretrainConfig) -> Backbone:
    torch.manual_seed(config.seed)
    return create(config.backbone or "", config.size, config.data.channels, config.drop_path)


def _introduce(config: PretrainConfig, stores: Stores, run: RunDirectory) -> None:
    store = stores.train
    aux = f", {config.aux} with weight {config.drloc.weight:g}" if config.aux != "none" else ""
    run.log.say(
        f"{config.method} on {len(store)} images; {config.backbone} at {config.size} px{aux}; "
        f"store {store.size} px on {store.where}, {amount(store.gigabytes)}; {stores.processes.device}."
    )


def _conclude(
    config: PretrainConfig, stores: Stores, objective: IDMM, outcome: Outcome, run: RunDirectory
) -> dict[str, Any]:
    objective.eval()
    backbone = objective.backbone
    if run.writes:
        save_bundle(run.path / "model", backbone, None, _meta(config, stores))
    result = {
        "finished": True,
        "method": config.method,
        "preset": config.preset,
        "aux": config.aux,
        "backbone": config.backbone,
        "size": config.size,
        "parameters": sum(p.numel() for p in backbone.parameters()),
        "images": len(stores.train),
        "epochs": config.epochs,
        "steps": outcome.steps,
        "seed": config.seed,
        "seconds": round(outcome.seconds, 2),
        "images_per_second": round(outcome.images_per_second, 1),
        "accumulate": outcome.accumulate,
        "bad_files": len(stores.bad),
        "last": outcome.metrics,
    }
    run.write("result.json", result)
    return result


def _meta(config: PretrainConfig, stores: Stores) -> BundleMeta:
    store = stores.train
    return BundleMeta(
        task="none",
        class_names=(),
        size=config.size or 0,
        store_size=store.size,
        mean=store.mean,
        std=store.std,
        channels=config.data.channels,
        bits=config.data.bits,
        max_pixels=config.data.max_pixels,
    )
