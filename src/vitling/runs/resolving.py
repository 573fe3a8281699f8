"""Resolve the settings of all stages of a run without training: --explain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitling.data.dataset import Splits
from vitling.data.sources import read_source
from vitling.data.sources.source import Source
from vitling.errors import UserError
from vitling.loading import read_json
from vitling.ranges import check_ranges
from vitling.runs.dense_images import find_start, open_dense
from vitling.runs.finetune import describe_start, require_start
from vitling.runs.group import load_request
from vitling.runs.images import gather_facts, gather_stage_facts, open_for_pretraining, open_labelled
from vitling.runs.network import dry_run
from vitling.runs.opening import check_request
from vitling.runs.train import check_method
from vitling.settings.config import FinetuneConfig, PretrainConfig, RunConfig, TrainConfig
from vitling.settings.continuing import read_previous
from vitling.settings.dense import DenseConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.plan import plan_run
from vitling.settings.resolve import Resolved, resolve
from vitling.settings.saved import load_resolved, resume_run
from vitling.settings.stages import LARGE_FOLDER, PRETRAIN_FOLDER, make_first_stage, make_large_stage
from vitling.settings.verbs import verb_of
from vitling.training.processes import choose_device

RUN = "run"  # the stage whose directory is --out
Measure = Callable[[Resolved, Facts, Splits], Resolved]


def _keep(resolved: Resolved, facts: Facts, splits: Splits) -> Resolved:
    return resolved


def resolve_stages(request: RunConfig, gpu: bool, measure: Measure = _keep) -> dict[str, Resolved]:
    """Return the settings of each stage; `measure` may shorten them to what fits into --minutes."""
    check_ranges(request)
    if isinstance(request, DenseConfig):
        facts = open_dense(request).gather_facts(gpu, find_start(request))
        return {RUN: resolve(request, facts)}
    source = read_source(request.source, request.data, request.labels)
    if isinstance(request, PretrainConfig):
        return {RUN: _resolve_pretraining(Draft(request), source, gpu, measure)}
    if isinstance(request, FinetuneConfig):
        return {RUN: _resolve_labelled(Draft(request), source, gpu, measure)}
    if not isinstance(request, TrainConfig):
        raise UserError("Only commands that train have settings to explain.")
    facts = gather_facts(request, source, gpu)
    check_method(request, facts)
    plan = Draft(request)
    plan_run(plan, facts)
    stages: dict[str, Resolved] = {}
    if plan.config.method != "supervised":
        stages[PRETRAIN_FOLDER] = _resolve_pretraining(make_first_stage(plan, facts.classes > 0), source, gpu, measure)
    if facts.classes:
        stages[RUN] = _resolve_labelled(plan, source, gpu, measure)
        if plan.config.final_size:
            stages[LARGE_FOLDER] = _resolve_labelled(make_large_stage(stages[RUN].config), source, gpu, _keep)
    return stages


def explain_settings(request: RunConfig) -> dict[str, Resolved]:
    """Return the settings that a command would train with; of a run that --resume continues, the saved ones."""
    request = load_request(request)
    folder = Path(request.out)
    if request.out and request.resume and (folder / "config.json").exists():
        return _load_stages(request, folder)
    check_request(request, verb_of(request))
    if isinstance(request, FinetuneConfig):
        require_start(request)
    stages = resolve_stages(request, gpu=choose_device(request.loop.device).type != "cpu")
    for stage, resolved in stages.items():
        if stage != LARGE_FOLDER:  # it starts from a run that does not exist yet
            dry_run(resolved.config)
    return stages


def _load_stages(request: RunConfig, folder: Path) -> dict[str, Resolved]:
    kinds: dict[str, type] = {PRETRAIN_FOLDER: PretrainConfig, RUN: type(request), LARGE_FOLDER: FinetuneConfig}
    stages: dict[str, Resolved] = {}
    for name, kind in kinds.items():
        path = (folder if name == RUN else folder / name) / "config.json"
        if path.exists():
            saved: Resolved = load_resolved(kind, read_json(path), path)
            check_ranges(saved.config, where=path)
            stages[name] = resume_run(request, saved) if name == RUN else saved
    return stages


def _resolve_pretraining(draft: Draft[PretrainConfig], source: Source, gpu: bool, measure: Measure) -> Resolved:
    splits = open_for_pretraining(draft.config, source)
    facts = replace(gather_stage_facts(splits, gpu), previous=read_previous(draft.config))
    return measure(resolve(draft, facts), facts, splits)


def _resolve_labelled(draft: Draft[Any], source: Source, gpu: bool, measure: Measure) -> Resolved:
    splits = open_labelled(draft.config, source)
    facts = gather_stage_facts(splits, gpu)
    if isinstance(draft.config, FinetuneConfig):
        facts = replace(facts, start=describe_start(draft.config, draft.config.from_))
    return measure(resolve(draft, facts), facts, splits)
