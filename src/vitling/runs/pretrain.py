"""The first stage: a network pre-trained on images without labels, or, as a baseline, with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from vitling import data
from vitling.backbones.backbone import Backbone
from vitling.data.dataset import Splits, merge_unlabelled
from vitling.errors import UserError
from vitling.evaluation.bundle import save_bundle
from vitling.evaluation.watching import CollapseWatcher, watch_pretraining
from vitling.methods.esvit import EsViTConfig, complete_weights, epochs_for_views
from vitling.methods.esvit.loss import EsViT
from vitling.methods.registry import (
    METHODS,
    SIZE,
    check_batch,
    check_task,
    check_views,
    make_objective,
    plan_of,
    preset_of,
    stage_of,
    views_in_vain,
)
from vitling.objectives.moments import Watcher
from vitling.objectives.objective import Objective
from vitling.runs.auxiliary import attach_auxiliary, make_auxiliary
from vitling.runs.pacing import fitted
from vitling.runs.running import (
    Stores,
    auxiliary_in_words,
    begin,
    begun,
    check_sampler,
    figures,
    meta_of,
    new_backbone,
    open_labelled,
    running,
    setting,
    settle_network,
)
from vitling.settings.checks import check
from vitling.settings.config import PLANNED, PretrainConfig
from vitling.settings.continuing import settings_before, with_batch, with_match, with_preset, with_shapes, with_store
from vitling.settings.names import flag, leaves, overlaid
from vitling.training.config import OptimConfig
from vitling.training.loop import fit
from vitling.training.processes import Processes
from vitling.training.result import FitResult
from vitling.training.rundir import RunDirectory
from vitling.views.config import ViewsConfig


def pretrain(config: PretrainConfig) -> dict[str, Any]:
    """Pre-trains, saves the backbone, and gives what is also in the run's result.json."""
    return running(config, "pretrain", pretrain_in)


def pretrain_in(
    config: PretrainConfig,
    run: RunDirectory,
    processes: Processes,
    began: float | None = None,
    least: int = 1,
    also: Callable[[int], Watcher] | None = None,
) -> dict[str, Any]:
    """`began` is when the clock of --minutes started, `least` how many epochs must fit; `also` makes another watcher,
    for those epochs after which the network is looked at anyway."""
    began = time.monotonic() if began is None else began
    splits, goes_on = _open(config), config.resume and begun(run)
    before = {} if goes_on else settings_before(config)
    config, notes = settle_network(with_store(config, before), splits.train, SIZE)
    asked = with_preset(with_batch(config, before), before)
    if not goes_on:  # what was saved is complete
        config = with_shapes(_with_preset(asked, len(splits.train)), asked, before)
        config = with_match(config, asked, before)
    check(config)
    config, turned = _with_places(config)
    if not goes_on:
        notes += [*turned, *_fitted_in_words(config, asked, len(splits.train))]
    _check_regions(config)
    backbone = new_backbone(config, config.drop_path)
    check_views(config, backbone)
    check_batch(config, len(splits.train))
    auxiliary = make_auxiliary(config, backbone)
    stores = begin(config, splits, backbone, notes, run, processes)
    objective = make_objective(config, backbone, stores.train)
    attach_auxiliary(objective, auxiliary, config)
    run.log.info(
        f"{config.method} on {len(stores.train)} images; {config.backbone} at {config.size} px"
        f"{auxiliary_in_words(config)}; {setting(stores)}"
    )
    _remark_on(config, backbone, stores, run)
    config = fitted(config, objective, stores, run, processes, began, least)
    if not goes_on:
        config = _for_its_length(config, asked, len(splits.train))
        if isinstance(objective, EsViT):
            objective.config = config.esvit
    _check_regions(config)
    attach_auxiliary(objective, auxiliary, config)  # again: its schedule is laid out for these epochs
    run.update_config(config)
    watcher = _watcher(config, stores, run)
    start = Path(config.continue_from) if config.continue_from else None
    watchers = [watcher, *([also(watcher.every)] if also else [])]
    outcome = fit(objective, stores.train, config.for_the_loop(), watchers, run=run, processes=processes, start=start)
    return _conclude(config, stores, objective, outcome, watcher.words, run)


def _remark_on(config: PretrainConfig, backbone: Backbone, stores: Stores, run: RunDirectory) -> None:
    """What was asked for and is not so, takes longer than it need, or may learn less than it seems to."""
    if config.method in ("moco-v2", "densecl") and any(isinstance(part, _BatchNorm) for part in backbone.modules()):
        run.log.warning(
            f"{config.backbone} has batch norm, whose statistics tell the key of this batch from those of the queue: "
            f"{config.method} can guess by them without learning. MoCo's shuffling of batches is not here."
        )
    usual = config.epochs == _usual_epochs(config, len(stores.train)) and "epochs" not in config.said
    if usual and config.minutes is None and stores.train.device.type == "cpu":
        run.log.info(f"{config.epochs} epochs take long on a CPU. --minutes 60 makes it as many as fit.")
    if config.views_budget is not None and config.views_budget < len(stores.train) * plan_of(config, SIZE).crops:
        run.log.warning(f"--views-budget {config.views_budget:g} is less than one epoch has; it is one epoch.")
    if config.method == "esvit" and stores.train.device.type == "cpu" and config.esvit.hidden > 256:
        run.log.info("EsViT is slow on a CPU: to try things, --esvit.hidden 256 --esvit.local-crops 2.")
    for words in views_in_vain(config):
        run.log.warning(f"Of the views of {config.method} this changes nothing: {words}.")


def _open(config: PretrainConfig) -> Splits:
    """Where labels are not trained on, an unlabelled pool is as good as the rest."""
    labels = METHODS[config.method].labels
    if labels == "ignored":
        splits = data.open(config.source, config.data, val=config.val, seed=config.held_out_by())
        check_sampler(config, splits.train)
        return _with_pool(splits)
    splits = open_labelled(config)
    check_task(config.method, splits.train.task)
    if splits.val is None:
        flatters = "k-NN asks about images whose labels are trained on, so it flatters; --val 0.1 keeps some apart."
        splits = replace(splits, notes=[*splits.notes, flatters])
    return _with_pool(splits) if labels == "some" else _without_pool(splits, config.method)


def _with_pool(splits: Splits) -> Splits:
    if splits.pool is None:
        return splits
    notes = [*splits.notes, f"{len(splits.train)} images and {len(splits.pool)} of the unlabelled pool."]
    return replace(splits, train=merge_unlabelled(splits.train, splits.pool), pool=None, notes=notes)


def _without_pool(splits: Splits, method: str) -> Splits:
    if splits.pool is None:
        return splits
    unused = f"The unlabelled pool ({len(splits.pool)} images) is not used: --method {method} needs labels."
    return replace(splits, pool=None, notes=[*splits.notes, unused])


def _with_preset(config: PretrainConfig, images: int | None = None) -> PretrainConfig:
    """The method's settings, for so many images, where nothing else was asked for."""
    method = METHODS[config.method]
    config = config if images is None else replace(config, epochs=_epochs(config, images))
    stage = stage_of(config)
    if images is not None and method.adapt:
        stage = method.adapt(stage, images, None if config.batch == PLANNED else config.batch)
    optim = overlaid(stage.optim, config.optim, OptimConfig(), config.said_of("optim"))
    changed: dict[str, Any] = {"preset": preset_of(config), "optim": optim}
    if config.batch == PLANNED:
        changed["batch"] = stage.batch
    if config.drop_path == PretrainConfig.drop_path and "drop_path" not in config.said:
        changed["drop_path"] = stage.drop_path
    if method.field:
        asked, said = method.config_of(config), config.said_of(method.field)
        own = overlaid(stage.objective, asked, type(stage.objective)(), said)
        changed[method.field] = complete_weights(own, said) if isinstance(own, EsViTConfig) else own
    return replace(config, **changed)


def _fitted_in_words(config: PretrainConfig, asked: PretrainConfig, images: int) -> list[str]:
    """A note of what depends on the number of images and was not named."""
    if config.method != "esvit":
        return []
    found, before = dict(leaves(config)), dict(leaves(asked))
    names = ["batch", "esvit.prototypes", *(["epochs", "esvit.momentum"] if config.minutes is None else [])]
    names += ["esvit.match"] if config.esvit.region_weight else []
    usual = dict(leaves(PretrainConfig()))
    unsaid = [name for name in names if name not in asked.said and before[name] == usual[name]]
    flags = " ".join(f"--{flag(name)} {_short(found[name])}" for name in unsaid)
    return [f"For {images:,} images: {flags} (docs/esvit.md)."] if unsaid else []


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _for_its_length(config: PretrainConfig, asked: PretrainConfig, images: int) -> PretrainConfig:
    """With the teacher's momentum for the epochs that fit into --minutes: it depends on how long the run is."""
    if config.method != "esvit" or config.minutes is None:
        return config
    as_long = replace(asked, epochs=config.epochs, said=(*asked.said, "epochs"))
    return replace(config, esvit=replace(config.esvit, momentum=_with_preset(as_long, images).esvit.momentum))


def _with_places(config: PretrainConfig) -> tuple[PretrainConfig, list[str]]:
    """Views that are turned have no places to match regions by: those are matched as in the paper, with a note that
    says so. (Where places were asked for, `check` has an error.)"""
    if not plan_of(config, SIZE).loses_boxes:
        return config, []
    note = (
        "Views that are turned have no places, so EsViT matches regions by what they look like to the network. With "
        "few images no region loss may be better: --esvit.region-weight 0 (docs/esvit.md)."
    )
    return replace(config, esvit=replace(config.esvit, match="argmax")), [note]


def _check_regions(config: PretrainConfig) -> None:
    """A UserError for a run that would end before its region loss begins; asked when the epochs are known."""
    later = config.esvit.region_from
    if later >= config.epochs:
        raise UserError(
            f"--esvit.region-from {later}: the run has {config.epochs} epochs, so the loss between regions would never "
            "be switched on."
        )


def _epochs(config: PretrainConfig, images: int) -> int:
    if config.views_budget is not None:
        return epochs_for_views(config.views_budget, images, plan_of(config, config.size or SIZE).crops)
    unsaid = config.epochs == PretrainConfig.epochs and "epochs" not in config.said
    return _usual_epochs(config, images) if unsaid else config.epochs


def _usual_epochs(config: PretrainConfig, images: int) -> int:
    by_images = METHODS[config.method].default_epochs
    return by_images(images) if by_images else PretrainConfig.epochs


def _watcher(config: PretrainConfig, stores: Stores, run: RunDirectory) -> CollapseWatcher:
    every = config.watch_every or max(1, round(config.epochs / (40 if config.minutes is None else 10)))
    stop = config.on_collapse == "stop"
    size, fraction = config.size or SIZE, ViewsConfig.crop_fraction
    return watch_pretraining(stores.train, stores.val, size, fraction, every, stop, run.log.warning, config.seed)


def _conclude(
    config: PretrainConfig,
    stores: Stores,
    objective: Objective,
    outcome: FitResult,
    warnings: list[str],
    run: RunDirectory,
) -> dict[str, Any]:
    objective.eval()
    if run.writes:
        save_bundle(run.path / "model", objective.final_backbone, None, meta_of(config, stores.train))
    result = {
        **figures(config, stores, outcome),
        "method": config.method,
        "labelled": stores.train.dataset.has_labels,
        "preset": config.preset,
        "parameters": sum(p.numel() for p in objective.final_backbone.parameters()),
        "last": outcome.metrics,
        "warnings": warnings,
    }
    run.write("result.json", result)
    return result
