"""The second stage: a pre-trained network on labelled images."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import nn

from vitling.data.dataset import Dataset
from vitling.data.store import measure_median_side
from vitling.errors import UserError
from vitling.evaluation.bundle import find_bundle, load_bundle, read_config
from vitling.evaluation.model import Model
from vitling.files import read_json
from vitling.methods import idmm
from vitling.runs.labelled import train_on
from vitling.runs.running import open_labelled, running, usual_size, weights_of
from vitling.settings.config import POLICY, FinetuneConfig
from vitling.settings.names import overlaid
from vitling.settings.plan import VIEW
from vitling.training.config import OptimConfig
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory

WITHOUT = "Leave out --keep-head, and a new head is trained."


def finetune(config: FinetuneConfig) -> dict[str, Any]:
    """Trains, evaluates, and gives what is also in the run's result.json."""
    if not config.from_ and not config.resume:
        raise UserError("Fine-tune what? Pass --from RUN, a pre-trained run, a checkpoint or a weights file.")
    return by_the_recipe(_with_views(config))


def _with_views(config: FinetuneConfig) -> FinetuneConfig:
    """IDMM's take no changes; whoever asks for some, and for no policy, has vitling's own, so changed."""
    own = replace(config.views, policy="")
    changed = config.views.policy == POLICY and "views.policy" not in config.said and not own.is_default_augmentation
    return replace(config, views=own) if changed else config


def by_the_recipe(config: FinetuneConfig) -> dict[str, Any]:
    """The same, but where nothing is named to start from it starts from random weights: the paper's baseline."""
    return running(config, "finetune", finetune_in)


def finetune_in(config: FinetuneConfig, run: RunDirectory, processes: Processes) -> dict[str, Any]:
    began = time.monotonic()
    source = weights_of(config, run)
    model = _with_a_head(source) if config.keep_head and source else None
    asked = config
    config, notes = with_preset(asked)
    splits = open_labelled(config)
    before, about = _trained_at(source) if asked.size is None else None, []
    if before is not None:
        usual = usual_size(config.backbone, measure_median_side(splits.train), VIEW)
        if usual < before:
            config, notes = with_preset(replace(asked, size=before))
            about = [f"Chosen: --size {before}, at which {source} was trained."]
        elif usual > before:
            about = [f"{source} was trained at {before} px, and this is at {usual}: --size."]
    if config.views.policy == "" and "views.policy" not in config.said:
        about.append(f"Views are vitling's own, changed as asked for: IDMM's ({POLICY}) take no changes.")
    splits.notes += notes + about
    head = None if model is None else _head_for(splits.train, model, config)
    return train_on(config, splits, run, processes, head, began)


def with_preset(config: FinetuneConfig) -> tuple[FinetuneConfig, list[str]]:
    """The preset's settings, which depend on the network and the size, where nothing else was asked for; with a note
    of those that a large size changes."""
    backbone, usual = config.backbone or _backbone_of(config.from_ or ""), FinetuneConfig()
    epochs = None if config.epochs == usual.epochs and "epochs" not in config.said else config.epochs
    stage = idmm.finetune_recipe(backbone, config.preset, epochs, config.size or 224)
    optim = overlaid(stage.optim, config.optim, OptimConfig(), config.said_of("optim"))
    preset = replace(usual, epochs=stage.epochs, batch=stage.batch)
    settled = overlaid(preset, replace(config, backbone=backbone, optim=optim), usual, config.said)
    chosen = [f"--{name} {getattr(settled, name)}" for name in ("epochs", "batch") if _differ(name, settled, config)]
    return settled, [f"Chosen for {config.size} px: {' '.join(chosen)}."] if chosen else []


def _trained_at(source: str | None) -> int | None:
    """Pixels of the views that a run had, which its model may be judged at others than; None of what is no run."""
    result = Path(source or "") / "result.json"
    return read_json(result).get("size") if source and result.is_file() else None


def _differ(name: str, one: FinetuneConfig, other: FinetuneConfig) -> bool:
    return getattr(one, name) != getattr(other, name)


def _backbone_of(source: str) -> str:
    if source and not Path(source).exists():
        raise UserError(f"There is no {source}. --from takes a run directory, a model folder or a weights file.")
    if not Path(source).is_dir():
        raise UserError(f"Which network are the weights in {source}? Pass --backbone NAME (`vitling list backbones`).")
    return str(read_config(find_bundle(Path(source)))["vitling"]["backbone"])


def _with_a_head(source: str) -> Model:
    if Path(source).is_file():
        raise UserError(
            f"--keep-head: {source} is a weights file, which does not say what its head means. Name a run or a model "
            "folder, or leave out --keep-head."
        )
    model = load_bundle(find_bundle(source))
    if model.head is None:
        raise UserError(f"--keep-head: {source} has no head, it is a pre-trained backbone. {WITHOUT}")
    return model


def _head_for(train: Dataset, model: Model, config: FinetuneConfig) -> nn.Linear:
    """The model's head, if its outputs mean the same here."""
    source = config.from_
    if model.backbone.name != config.backbone:
        raise UserError(
            f"--keep-head: the head of {source} belongs to {model.backbone.name}, not to {config.backbone}. "
            "Leave out --backbone, or --keep-head."
        )
    if model.meta.task != train.task:
        several, one = (source, train.name) if model.meta.task == "multi" else (train.name, source)
        raise UserError(f"--keep-head: {several} has several labels an image, and {one} has one. {WITHOUT}")
    for i, (theirs, ours) in enumerate(zip_longest(model.class_names, train.class_names), 1):
        if theirs != ours:
            raise UserError(
                f"--keep-head: the classes of {source} are not those of {train.name}. The first that differs is number "
                f"{i}: {_quoted(theirs)} there, {_quoted(ours)} here. {WITHOUT}"
            )
    assert model.head is not None
    return model.head


def _quoted(name: str | None) -> str:
    return "none" if name is None else f'"{name}"'
