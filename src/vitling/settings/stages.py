"""The stages of `train` around the one that learns the labels: pre-training, and fine-tuning at a larger size."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from vitling.methods.idmm.settings import finetune_recipe
from vitling.settings.config import (
    FinetuneConfig,
    LabelledConfig,
    MethodsConfig,
    PretrainConfig,
    RunConfig,
    TrainConfig,
)
from vitling.settings.layers import Draft, Origin
from vitling.settings.names import leaves
from vitling.settings.plan import PRETRAIN_SHARE
from vitling.training.config import OptimConfig
from vitling.views.config import ViewsConfig

PRETRAIN_FOLDER, LARGE_FOLDER = "pretrain", "large"  # within the directory of the run
_LARGE = 448  # px; the size that IDMM's recipe for large views is published for
_SECOND_STAGE_ONLY = (
    *("out", "epochs", "size", "seeds", "aux", "drloc", "optim"),
    *("resume", "overwrite", "explain", "report", "explicit"),
)
_SHARED = {"method", "on_collapse", *(f.name for cls in (RunConfig, MethodsConfig) for f in fields(cls))}
_RENAMED = {  # settings of `train` that its first stage has under another name
    "pretrain_epochs": "epochs",
    "pretrain_size": "size",
    "pretrain_optim": "optim",
    "pretrain_views": "views",
    "pretrain_preset": "preset",
    "objective.drop_path": "drop_path",
}


def make_first_stage(plan: Draft[TrainConfig], has_second: bool) -> Draft[PretrainConfig]:
    """Return the settings of the first stage of a planned run, with their origins.

    It resumes whenever an earlier start of the run has begun it.
    """
    config = plan.config
    stage = Draft(PretrainConfig(out=str(Path(config.out) / PRETRAIN_FOLDER), resume=True, report=False))
    for name, value in leaves(config):
        if (target := _first_stage_name(name)) is not None:
            _copy(plan, name, stage, target, value)
    _copy(plan, "pretrain_preset" if config.method != "idmm" else "preset", stage, "preset", config.first_preset)
    if config.pretrain_epochs is None:
        _copy(plan, "pretrain_epochs", stage, "epochs", 1)
    if config.minutes is not None and has_second:
        _copy(plan, "minutes", stage, "minutes", config.minutes * PRETRAIN_SHARE)
    if config.pretrain_views.flip is None and config.views.flip != ViewsConfig().flip:  # mirroring is for both stages
        _copy(plan, "views.flip", stage, "views.flip", config.views.flip)
    if not config.has_colours:
        stage.override("views.colour", False, "plan", "the images are not RGB")
    return stage


def make_large_stage(config: TrainConfig) -> Draft[FinetuneConfig]:
    """Return the settings of the stage at --final-size: the preset for such sizes, with no larger batch than before."""
    recipe = finetune_recipe(config.backbone or "", config.second_preset, size=_LARGE)
    batch = min(recipe.batch, config.batch)
    stage = _derive_stage(
        config,
        out=str(Path(config.out) / LARGE_FOLDER),
        from_=config.out,
        size=config.final_size,
        keep_head=True,
        preset=config.second_preset,
        epochs=min(recipe.epochs, config.epochs),
        batch=batch,
        optim=OptimConfig(lr=recipe.lr_for(batch), accumulate=config.optim.accumulate),
        loop=replace(config.loop, compile="auto") if config.minutes is not None else config.loop,
        store_size=None,
        test_size=None,
        eval_every=None,
    )
    stage.origins = {name: Origin("plan", "from the run at the smaller size") for name in stage.origins}
    return stage


def make_fold_stage(
    config: LabelledConfig, fold: int, folds: int, out: Path, start: str | None
) -> Draft[FinetuneConfig]:
    """Return the settings of the stage that learned the labels, for one fold of a cross-validation."""
    stage = _derive_stage(
        config,
        out=str(out),
        from_=start,
        data=replace(config.data, folds=folds, fold=fold),
        preset=config.second_preset if isinstance(config, TrainConfig) else getattr(config, "preset", "paper"),
        split_seed=config.hold_out_seed(),
        seeds=1,
        val=None,
        test=False,
        eval_every=config.epochs,
    )
    stage.origins = {name: Origin("plan", "from the run whose labels are checked") for name, _ in leaves(stage.config)}
    return stage


def _derive_stage(config: LabelledConfig, **changes: Any) -> Draft[FinetuneConfig]:
    """Return a fine-tuning stage with the settings of a run, apart from `changes`. It resumes and is not reported."""
    shared = {f.name: getattr(config, f.name) for f in fields(LabelledConfig)}
    own = {"minutes": None, "resume": True, "overwrite": False, "report": False, "explicit": ()}
    return Draft(FinetuneConfig(**shared | own | changes))


def _first_stage_name(name: str) -> str | None:
    """Return the name that a setting of `train` has in the first stage; None if that stage does not have it."""
    first, dot, rest = name.partition(".")
    if name in _RENAMED or first in _RENAMED:
        return _RENAMED.get(name) or f"{_RENAMED[first]}{dot}{rest}"
    return name if first in _SHARED and first not in _SECOND_STAGE_ONLY else None


def name_in_train(name: str) -> str:
    """Return the name that a setting of the first stage has in `train`."""
    first, dot, rest = name.partition(".")
    inverse = {target: own for own, target in _RENAMED.items()}
    return inverse.get(name) or (f"{inverse[first]}{dot}{rest}" if first in inverse else name)


def _copy(plan: Draft[TrainConfig], name: str, stage: Draft[PretrainConfig], target: str, value: Any) -> None:
    origin = plan.origins.get(name, Origin())
    stage.override(target, value, origin.layer, origin.reason)
