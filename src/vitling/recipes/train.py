"""From a folder of images to a trained network: a plan, then one stage or two.

The run directory is that of the stage that learns the labels; the one before has its own in it, `pretrain/`, and so
has the one at a larger size that may follow, `large/`.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitling.data.splits import own_splits
from vitling.data.store import choose_size
from vitling.errors import UserError
from vitling.files import read_json, write_json
from vitling.recipes import idmm
from vitling.recipes.auxiliary import make_auxiliary
from vitling.recipes.config import FinetuneConfig, LabelledConfig, PretrainConfig, TrainConfig, from_plain, overlaid
from vitling.recipes.finetune import finetune
from vitling.recipes.labelled import train_in
from vitling.recipes.plan import FIRST_SHARE, Plan, Sight, make_plan
from vitling.recipes.pretrain import pretrain_in
from vitling.recipes.running import check_labels, in_directory, new_backbone, prepare, running, settle_network
from vitling.training.config import OptimConfig
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.views.config import ViewsConfig

FIRST, LARGE = "pretrain", "large"
STARTING = 8.0  # seconds that Python and torch take before the clock is looked at


def train(config: TrainConfig) -> dict[str, Any]:
    """Plans, trains in one stage or two, evaluates, and gives what is also in the run's result.json."""
    result = running(config, "train", _train)
    saved = from_plain(TrainConfig, read_json(Path(config.out) / "config.json"))
    return _enlarged(saved, Path(config.out), result) if saved.final_size and "classes" in result else result


def _enlarged(config: TrainConfig, out: Path, result: dict[str, Any]) -> dict[str, Any]:
    """A run of its own, of which the result has the figures too."""
    known = {f.name: getattr(config, f.name) for f in fields(LabelledConfig)}
    fresh = FinetuneConfig()
    large = FinetuneConfig(
        **known
        | {
            "out": str(out / LARGE),
            "from_": str(out),
            "size": config.final_size,
            "keep_head": True,
            "resume": True,
            "overwrite": False,
            "preset": config.preset,
            "epochs": fresh.epochs,
            "batch": fresh.batch,
            "minutes": None,
            "optim": fresh.optim,
            "store_size": None,
            "eval_every": None,
        }
    )
    after = finetune(large)
    result |= {"stages": {**result.get("stages", {}), LARGE: _short(after) | {"last": after["last"]}}}
    if int(os.environ.get("RANK") or "0") == 0:
        write_json(out / "result.json", result)
    return result


def _train(config: TrainConfig, run: RunDirectory, processes: Processes) -> dict[str, Any]:
    began = time.monotonic() - STARTING
    sight = look(config, processes)
    plan = make_plan(config, sight)
    if plan.config.method == "supervised":
        if not sight.classes:
            raise UserError("--method supervised needs labels, and these images have none. idmm needs none.")
        return _one_stage(plan, run, processes, began)
    return _two_stages(plan, sight, run, processes, began)


def look(config: TrainConfig, processes: Processes) -> Sight:
    """What the plan is made from. The test split is counted, not opened."""
    splits = own_splits(config.source, config.data)
    labelled = splits.train.task != "none"
    if labelled:
        check_labels(config, splits)
    device, gigabytes = processes.device, None
    if device.type == "cuda":
        gigabytes = torch.cuda.get_device_properties(device).total_memory / 2**30
    return Sight(
        images=len(splits.train) + len(splits.val or ()),
        pool=len(splits.pool or ()),
        classes=len(splits.train.class_names) if labelled else 0,
        own_val=splits.val is not None,
        test=splits.has_test,
        longer=choose_size(splits.train, largest_view=2**20),
        gpu_gb=gigabytes,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def _one_stage(plan: Plan, run: RunDirectory, processes: Processes, began: float) -> dict[str, Any]:
    return train_in(plan.config, run, processes, began, plan.in_words())


def _two_stages(plan: Plan, sight: Sight, run: RunDirectory, processes: Processes, began: float) -> dict[str, Any]:
    """What the second stage may stumble over is looked at before the first one has taken its time."""
    first, second = first_stage(plan.config), second_stage(plan.config)
    if sight.classes:
        settled = settle_network(second, own_splits(second.source, second.data).train, view=224)[0]
        make_auxiliary(settled, new_backbone(settled, 0.0))
    prepare(second, run, processes)
    run.start(second, ())
    for line in plan.in_words():
        run.log.say(line)
    early = (Path(first.out) / "result.json").exists()
    share = FIRST_SHARE if sight.classes else 1.0
    first = replace(first, minutes=None if first.minutes is None else first.minutes * share)
    before = in_directory(first, FIRST, partial(pretrain_in, began=began), processes)
    if not sight.classes:
        return _without_labels(run, Path(first.out), before)
    run.log.say(f"The second stage; the first took {before['seconds']:.0f} s.")
    began -= before["seconds"] if early else 0.0
    result = train_in(replace(second, resume=True), run, processes, began)
    result |= {"method": second.method, "stages": {FIRST: _short(before), "finetune": _short(result)}}
    run.write("result.json", result)
    return result


def first_stage(config: TrainConfig) -> PretrainConfig:
    """It goes on where an earlier start of the run left it."""
    out = str(Path(config.out) / FIRST)
    return PretrainConfig(
        source=config.source,
        out=out,
        backbone=config.backbone,
        from_=None if config.from_ == out else config.from_,
        size=config.pretrain_size,
        epochs=config.pretrain_epochs or 1,
        batch=config.batch,
        minutes=config.minutes,
        seed=config.seed,
        val=config.val,
        store=config.store,
        cache=config.cache,
        allow_bad=config.allow_bad,
        resume=True,
        data=config.data,
        optim=config.pretrain_optim,
        loop=config.loop,
        checkpoint=config.checkpoint,
        preset=config.preset,
        drop_path=config.objective.drop_path,
        idmm=config.idmm,
    )


def second_stage(config: TrainConfig) -> TrainConfig:
    stage = idmm.finetune(config.backbone or "", config.preset, config.epochs, config.size or 224)
    return replace(
        config,
        from_=str(Path(config.out) / FIRST),
        optim=overlaid(stage.optim, config.optim, OptimConfig()),
        views=overlaid(ViewsConfig(policy="idmm-finetune"), config.views, ViewsConfig()),
    )


def _without_labels(run: RunDirectory, first: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The first stage is all there is: its network is the run's."""
    if run.writes:
        shutil.copytree(first / "model", run.path / "model", dirs_exist_ok=True)
    result = before | {"stages": {FIRST: _short(before)}}
    run.write("result.json", result)
    return result


def _short(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("epochs", "size", "images", "seconds", "images_per_second")}
