"""The second stage: a pre-trained network on labelled images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.evaluation.bundle import bundle_folder, read_config
from vitling.recipes import idmm
from vitling.recipes.config import FinetuneConfig, overlaid
from vitling.recipes.running import running
from vitling.recipes.train import train_in
from vitling.training.config import OptimConfig
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory


def finetune(config: FinetuneConfig) -> dict[str, Any]:
    """Trains, evaluates, and gives what is also in the run's result.json."""
    if not config.from_ and not config.resume:
        raise UserError("Fine-tune what? Pass --from RUN, a pre-trained run, a checkpoint or a weights file.")
    return by_the_recipe(config)


def by_the_recipe(config: FinetuneConfig) -> dict[str, Any]:
    """The same, but where nothing is named to start from it starts from random weights: the paper's baseline."""
    return running(config, "finetune", _finetune)


def _finetune(config: FinetuneConfig, run: RunDirectory, processes: Processes) -> dict[str, Any]:
    backbone = config.backbone or _backbone_of(config.from_ or "")
    stage = idmm.finetune(backbone, config.preset, config.epochs, config.size or 224)
    optim = overlaid(stage.optim, config.optim, OptimConfig())
    return train_in(replace(config, backbone=backbone, optim=optim), run, processes)


def _backbone_of(source: str) -> str:
    if not Path(source).is_dir():
        raise UserError(f"Which network are the weights in {source}? Pass --backbone NAME (`vitling list backbones`).")
    return str(read_config(bundle_folder(Path(source)))["vitling"]["backbone"])
