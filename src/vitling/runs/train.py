"""From a folder of images to a trained network: a plan, then one stage or two.

The run directory is that of the stage that learns the labels; the one before has its own in it, `pretrain/`, and so
has the one at a larger size that may follow, `large/`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitling.data.splits import read_splits
from vitling.data.store import measure_median_side
from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.methods import idmm
from vitling.methods.registry import METHODS, SIZE, check_task
from vitling.runs.auxiliary import make_auxiliary
from vitling.runs.finetune import finetune_in
from vitling.runs.labelled import train_in
from vitling.runs.pacing import TooFewEpochs
from vitling.runs.precompile import Meanwhile
from vitling.runs.pretrain import pretrain_in
from vitling.runs.running import (
    Work,
    check_labels,
    check_test_size,
    in_directory,
    new_backbone,
    prepare,
    running,
    settle_network,
    start_from,
)
from vitling.settings.checks import check
from vitling.settings.config import (
    POLICY,
    Config,
    FinetuneConfig,
    LabelledConfig,
    MethodsConfig,
    PretrainConfig,
    TrainConfig,
)
from vitling.settings.names import overlaid, saved_config
from vitling.settings.plan import (
    FIRST_SHARE,
    VIEW,
    Plan,
    Sight,
    first_stage_is_planned,
    least_of_first,
    make_plan,
    one_stage,
)
from vitling.training.config import OptimConfig
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.views.config import ViewChanges, ViewsConfig

FIRST, LARGE = "pretrain", "large"
STARTING = 8.0  # seconds that Python and torch take before the clock is looked at


def train(config: TrainConfig) -> dict[str, Any]:
    """Plans, trains in one stage or two, evaluates, and gives what is also in the run's result.json."""
    return running(config, "train", _train, _enlarged)


def _train(config: TrainConfig, run: RunDirectory, processes: Processes) -> dict[str, Any]:
    began = time.monotonic() - STARTING
    sight = look(config, processes)
    if config.method != "auto" and METHODS[config.method].labels != "ignored" and not sight.classes:
        raise UserError(f"--method {config.method} needs labels, and these images have none. idmm needs none.")
    begun = config.resume and (run.path / "config.json").exists()  # then all is settled, by the plan of its time
    plan = Plan(config, ()) if begun else make_plan(config, sight)
    check(plan.config)
    if plan.config.method == "supervised":
        return train_in(plan.config, run, processes, began, plan.in_words())
    alone = None
    if plan.config.minutes is not None and sight.classes and first_stage_is_planned(config, plan):
        alone = make_plan(one_stage(config), sight)
    return _two_stages(plan, sight, run, processes, began, alone)


def look(config: TrainConfig, processes: Processes) -> Sight:
    """What the plan is made from. The test split is counted, not opened."""
    splits = read_splits(config.source, config.data)
    labelled = splits.train.task != "none"
    if labelled:
        check_labels(config, splits)
        if config.method != "auto":
            check_task(config.method, splits.train.task)
    return Sight(
        images=len(splits.train) + len(splits.val or ()),
        pool=len(splits.pool or ()),
        classes=len(splits.train.class_names) if labelled else 0,
        own_val=splits.val is not None,
        test=splits.has_test and config.test,
        longer=measure_median_side(splits.train) or VIEW,
        gpu=processes.device.type != "cpu",
    )


def _two_stages(
    plan: Plan, sight: Sight, run: RunDirectory, processes: Processes, began: float, alone: Plan | None
) -> dict[str, Any]:
    """`alone`: what to do where the time is too short for a first stage, if that is for the plan to say."""
    first, second = first_stage(plan.config), second_stage(plan.config)
    if not (second.resume and (Path(first.out) / "config.json").exists()):
        _look_ahead(first, second, bool(sight.classes))
    prepare(second, run, processes)
    run.start(second, ())
    for line in plan.in_words():
        run.log.info(line)
    early = (Path(first.out) / "result.json").exists()
    if first.minutes is not None and sight.classes:
        first = replace(first, minutes=first.minutes * FIRST_SHARE)
    least = 1 if alone is None else least_of_first(second)
    with Meanwhile(run, second, processes) as meanwhile:
        also = meanwhile.watcher if sight.classes else None
        work = partial(pretrain_in, began=began, least=least, also=also)
        before = _first_unless_too_short(first, work, run, processes)
        meanwhile.finish(None if second.minutes is None else 60 * second.minutes - (time.monotonic() - began))
    if alone is not None and not before:
        run.update_config(alone.config)  # for a resume
        return train_in(replace(alone.config, resume=True), run, processes, began, alone.in_words(plan))
    if not sight.classes:
        return _without_labels(run, Path(first.out), before)
    run.log.info(f"The second stage; the first took {before['seconds']:.0f} s.")
    began -= before["seconds"] if early else 0.0
    result = train_in(replace(second, resume=True), run, processes, began, start=first.out)
    result |= {"method": second.method, "stages": {FIRST: _short(before), "finetune": _short(result)}}
    run.write("result.json", result)
    return result


def _first_unless_too_short(
    first: PretrainConfig, work: Work, run: RunDirectory, processes: Processes
) -> dict[str, Any]:
    """Nothing, if it is left out. A function of its own: what was raised keeps the stage's images and network in memory
    as long as it is handled."""
    try:
        return in_directory(_as_begun(first), FIRST, work, processes)
    except TooFewEpochs as reason:
        run.log.info(f"The first stage is left out: {reason} --method {first.method} keeps it.")
        return {}


def first_stage(config: TrainConfig) -> PretrainConfig:
    """It goes on where an earlier start of the run left it."""
    if config.method == "auto":
        raise ValueError("a method is planned before its stage is made")
    return PretrainConfig(
        **{f.name: getattr(config, f.name) for f in fields(MethodsConfig)},
        method=config.method,
        source=config.source,
        out=str(Path(config.out) / FIRST),
        backbone=config.backbone,
        from_=config.from_,
        size=config.pretrain_size,
        epochs=config.pretrain_epochs or 1,
        batch=config.batch,
        minutes=config.minutes,
        seed=config.seed,
        split_seed=config.split_seed,
        val=config.val,
        store=config.store,
        store_size=config.store_size,
        cache=config.cache,
        allow_bad=config.allow_bad,
        resume=True,
        data=config.data,
        optim=config.pretrain_optim,
        loop=config.loop,
        checkpoint=config.checkpoint,
        preset=config.first_preset,
        drop_path=config.objective.drop_path,
        on_collapse=config.on_collapse,
        views=_first_views(config),
        said=(
            *(f"optim.{name}" for name in config.said_of("pretrain_optim")),
            *_of_methods(config.said),
            *(["drop_path"] if "objective.drop_path" in config.said else []),
        ),
    )


def _of_methods(said: Sequence[str]) -> list[str]:
    """Settings that both stages have under the same name, and the first one uses."""
    return [name for name in said if name.partition(".")[0] in {f.name for f in fields(MethodsConfig)}]


def _first_views(config: TrainConfig) -> ViewChanges:
    """What was said of mirror images holds for both stages; colours are for images that have them."""
    changes, flip = config.pretrain_views, config.views.flip
    if changes.flip is None and flip != ViewsConfig().flip:
        changes = replace(changes, flip=flip)
    return replace(changes, colour=changes.colour and _has_colours(config))


def _has_colours(config: TrainConfig) -> bool:
    return config.data.channels in (1, 3)


def second_stage(config: TrainConfig) -> TrainConfig:
    """IDMM's fine-tuning. Views that were described otherwise are those of one's own instead of the recipe's."""
    stage = idmm.finetune_recipe(config.backbone or "", config.second_preset, config.epochs)
    views = config.views
    if _has_colours(config) and views.is_default_augmentation:
        views = replace(views, policy=POLICY)
    return replace(
        config, optim=overlaid(stage.optim, config.optim, OptimConfig(), config.said_of("optim")), views=views
    )


def _look_ahead(first: PretrainConfig, second: TrainConfig, labelled: bool) -> None:
    """What the stages may stumble over is looked at before anything is deleted or has taken its time."""
    early = _problem(first, SIZE)
    late = _problem(second, 224) if labelled else None
    if early is not None and str(early) != str(late):
        raise UserError(f"In the first stage (--pretrain-optim is its --optim, --pretrain-views its --views): {early}")
    if late is not None:  # of both stages, or of the second
        raise late


def _problem(config: Config, view: int) -> UserError | None:
    try:
        _try(config, view)
    except UserError as problem:
        return problem
    return None


def _try(config: Config, view: int) -> None:
    check(config)
    settled = settle_network(config, read_splits(config.source, config.data).train, view)[0]
    backbone = new_backbone(settled, 0.0)
    check_test_size(settled, backbone)
    make_auxiliary(settled, backbone)
    start_from(backbone, config.from_, keeps_head=False)


def _as_begun(stage: Config) -> Config:
    """A stage that an earlier start began has settings that were found on the way, such as how many epochs fit."""
    saved = Path(stage.out) / "config.json"
    if not saved.exists():
        return stage
    return replace(saved_config(type(stage), read_json(saved)), out=stage.out, resume=True)


def _without_labels(run: RunDirectory, first: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The first stage is all there is: its network is the run's."""
    if run.writes:
        shutil.copytree(first / "model", run.path / "model", dirs_exist_ok=True)
    result = before | {"stages": {FIRST: _short(before)}}
    run.write("result.json", result)
    return result


def _enlarged(config: TrainConfig, result: dict[str, Any], processes: Processes) -> dict[str, Any]:
    """The stage at a larger size: a run of its own, of which the result has the figures too."""
    out = Path(config.out)
    saved = saved_config(TrainConfig, read_json(out / "config.json"))
    if not saved.final_size or "classes" not in result:
        return result
    after = in_directory(_as_begun(large_stage(saved, out)), "finetune", finetune_in, processes)
    result |= {"stages": {**result.get("stages", {}), LARGE: _short(after) | {"last": after["last"]}}}
    if processes.is_main:
        write_json(out / "result.json", result)
    return result


def large_stage(config: TrainConfig, out: Path) -> FinetuneConfig:
    """At the preset's rate for such sizes; with no larger batch than before, and the rate for that."""
    stage = idmm.finetune_recipe(config.backbone or "", config.second_preset, size=448)
    batch = min(stage.batch, config.batch)
    known = {f.name: getattr(config, f.name) for f in fields(LabelledConfig)}
    own: dict[str, Any] = {
        "out": str(out / LARGE),
        "from_": str(out),
        "size": config.final_size,
        "keep_head": True,
        "preset": config.second_preset,
        "epochs": min(stage.epochs, config.epochs),
        "batch": batch,
        "optim": replace(OptimConfig(), lr=stage.lr_for(batch), accumulate=config.optim.accumulate),
        "loop": replace(config.loop, compile="auto") if config.minutes is not None else config.loop,
        "minutes": None,
        "store_size": None,
        "test_size": None,
        "eval_every": None,
        "resume": True,
        "overwrite": False,
        "said": (),
    }
    return FinetuneConfig(**known | own)


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("epochs", "size", "images", "seconds", "images_per_second")}
