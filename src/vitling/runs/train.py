"""`vitling train`: from a folder of images to a trained network, in one stage or two.

The run directory is that of the stage that learns the labels. The stage before it has its own directory inside,
`pretrain/`, and so has the one at a larger size that may follow, `large/`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.runs.finetune import finetune_in
from vitling.runs.images import gather_facts, open_labelled
from vitling.runs.labelled import prepare_stage, train_stage
from vitling.runs.network import dry_run
from vitling.runs.opening import OpenRun, open_run
from vitling.runs.precompile import Precompiler
from vitling.runs.pretrain import pretrain_in
from vitling.runs.report import train_and_report
from vitling.runs.timing import Clock, TooFewEpochsError
from vitling.settings.checks import check, check_task
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.plan import (
    describe_plan,
    drop_pretraining,
    is_pretraining_optional,
    min_pretrain_epochs,
    plan_run,
)
from vitling.settings.resolve import Resolved, resolve
from vitling.settings.saved import load_config
from vitling.settings.stages import LARGE_FOLDER, PRETRAIN_FOLDER, make_first_stage, make_large_stage


def train(request: TrainConfig) -> dict[str, Any]:
    """Plan, train in one stage or two, evaluate, and return what result.json contains."""
    return train_and_report(request, "train", _train)


def _train(run: OpenRun[TrainConfig]) -> dict[str, Any]:
    if run.evaluated is not None:
        return run.finish(_enlarge(run, run.evaluated))
    clock = Clock()
    facts = gather_facts(run.draft.config, run.source, run.has_gpu)
    plan = make_plan(run, facts)
    if plan.config.method == "supervised":
        result = _train_on_labels(run, plan, [] if run.saved else describe_plan(plan), clock)
    else:
        result = _train_two_stages(run, plan, facts, clock)
    return run.finish(_enlarge(run, result))


def make_plan(run: OpenRun[TrainConfig], facts: Facts) -> Draft[TrainConfig]:
    """Plan a new run; a resumed one has its plan in config.json."""
    plan = run.draft
    check_method(plan.config, facts)
    if run.saved is None:
        plan_run(plan, facts)
    check(plan.config)
    return plan


def check_method(config: TrainConfig, facts: Facts) -> None:
    """Raise UserError if the method needs labels that the images do not have."""
    if config.method == "auto":
        return
    if METHODS[config.method].labels != "ignored" and not facts.classes:
        raise UserError(f"--method {config.method} needs labels, and these images have none. Use --method idmm.")
    if facts.classes:
        check_task(config.method, "multi" if facts.multi_label else "single")


def _train_on_labels(
    run: OpenRun[TrainConfig], plan: Draft[TrainConfig], notes: list[str], clock: Clock, start: str | None = None
) -> dict[str, Any]:
    splits = open_labelled(plan.config, run.source)
    splits.notes += notes
    return train_stage(prepare_stage(run, plan, splits, start=start), run, clock)


def _train_two_stages(
    run: OpenRun[TrainConfig], plan: Draft[TrainConfig], facts: Facts, clock: Clock
) -> dict[str, Any]:
    """Pre-train, then fine-tune; if the plan chose two stages and the time is too short for both, only the labels."""
    first = make_first_stage(plan, has_second=facts.classes > 0)
    folder = Path(first.config.out)
    if run.saved is None or not (folder / "config.json").exists():
        _dry_run(first, plan, facts)
    _open_directory(run, plan)
    finished_earlier = (folder / "result.json").exists()
    optional = plan.config.minutes is not None and facts.classes > 0 and is_pretraining_optional(plan)
    with Precompiler(run, plan.config, wanted=facts.classes > 0) as precompiler:
        before = _pretrain(run, first, clock, min_pretrain_epochs(plan.config) if optional else 1, precompiler)
        minutes = plan.config.minutes
        precompiler.finish(None if minutes is None else 60 * minutes - clock.elapsed)
    if before is None:
        alone = drop_pretraining(plan)
        plan_run(alone, facts)
        return _train_on_labels(run, alone, describe_plan(alone, plan), clock)
    if not facts.classes:
        return _copy_first_stage(run, folder, before)
    run.directory.log.info(f"Second stage; the first took {before['seconds']:.0f} s.")
    if finished_earlier:  # by an earlier start, whose time counts too
        clock.began -= before["seconds"]
    result = _train_on_labels(run, plan, [], clock, start=first.config.out)
    stages = {PRETRAIN_FOLDER: _shorten(before), "finetune": _shorten(result)}
    return result | {"method": plan.config.method, "stages": stages}


def _dry_run(first: Draft[PretrainConfig], second: Draft[TrainConfig], facts: Facts) -> None:
    """Fail early: build the networks of both stages before anything is deleted or trained."""
    early, late = _find_problem(first, facts), _find_problem(second, facts) if facts.classes else None
    if early is not None and str(early) != str(late):
        raise UserError(f"First stage (--pretrain-optim is its --optim, --pretrain-views its --views): {early}")
    if late is not None:
        raise late


def _find_problem(draft: Draft, facts: Facts) -> UserError | None:
    try:
        dry_run(resolve(draft, facts).config)
    except UserError as problem:
        return problem
    return None


def _open_directory(run: OpenRun[TrainConfig], plan: Draft[TrainConfig]) -> None:
    run.prepare()
    run.write_settings(Resolved(plan.config, plan.origins), trackers=())
    for line in describe_plan(plan) if run.saved is None else ():
        run.directory.log.info(line)


def _pretrain(
    run: OpenRun[TrainConfig], first: Draft[PretrainConfig], clock: Clock, min_epochs: int, precompiler: Precompiler
) -> dict[str, Any] | None:
    """Run the first stage; return None if too few epochs fit into the time.

    A separate function, so that an exception does not keep the stage's images and network in memory.
    """
    try:
        with open_run(first, "pretrain", run.processes, parent=run) as stage:
            return stage.result or pretrain_in(stage, clock, min_epochs, precompiler.make_watcher)
    except TooFewEpochsError as reason:
        run.directory.log.info(f"Skipping the first stage: {reason} --method {first.config.method} keeps it.")
        return None


def _copy_first_stage(run: OpenRun, folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Make the network of the first stage that of the run: without labels it is the only stage."""
    if run.directory.writes:
        shutil.copytree(folder / "model", run.directory.path / "model", dirs_exist_ok=True)
    return before | {"stages": {PRETRAIN_FOLDER: _shorten(before)}}


def _enlarge(run: OpenRun[TrainConfig], result: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune at --final-size in a separate run; return the result with its figures."""
    config = load_config(TrainConfig, run.directory.read("config.json"), run.directory.path / "config.json")
    if not config.final_size or "classes" not in result:
        return result
    run.keep_evaluation(result)  # an interrupted large stage must not open the test split again
    run.processes.barrier()  # it starts from the model that the main process saves
    with open_run(make_large_stage(config), "finetune", run.processes, parent=run) as stage:
        after = stage.result or finetune_in(stage)
    stages = {**result.get("stages", {}), LARGE_FOLDER: _shorten(after) | {"last": after["last"]}}
    return result | {"stages": stages}


def _shorten(result: dict[str, Any]) -> dict[str, Any]:
    kept = ("epochs", "size", "images", "seconds", "images_per_second", "data_hashes")
    return {name: result[name] for name in kept if name in result}
