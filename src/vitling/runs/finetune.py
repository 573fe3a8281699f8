"""Fine-tuning: a pre-trained network on labelled images, as in IDMM's second stage."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from vitling.data.dataset import Dataset
from vitling.errors import UserError
from vitling.evaluation.bundle import find_bundle, load_bundle, read_config
from vitling.evaluation.model import Model
from vitling.loading import read_record
from vitling.records import Count
from vitling.runs.images import open_labelled
from vitling.runs.labelled import prepare_stage, train_stage
from vitling.runs.opening import OpenRun
from vitling.runs.report import train_and_report
from vitling.runs.timing import Clock
from vitling.settings.config import FinetuneConfig, RunConfig
from vitling.settings.facts import Start

NEW_HEAD = "Leave out --keep-head to train a new head."


class StartResult(TypedDict, total=False):
    """The keys of result.json that fine-tuning reads from the run it starts from."""

    size: Count


def finetune(request: FinetuneConfig) -> dict[str, Any]:
    """Fine-tune, evaluate, and return what result.json contains."""
    require_start(request)
    return finetune_from_any_start(request)


def require_start(request: FinetuneConfig) -> None:
    """Raise UserError if there are no weights to fine-tune."""
    if not request.from_ and not request.resume:
        raise UserError("No weights to fine-tune. Pass --from RUN: a pre-trained run, a checkpoint or a weights file.")


def finetune_from_any_start(request: FinetuneConfig) -> dict[str, Any]:
    """Fine-tune; without --from, start from random weights, which is the paper's baseline."""
    return train_and_report(request, "finetune", finetune_in)


def finetune_in(run: OpenRun[FinetuneConfig]) -> dict[str, Any]:
    """Train in an open run directory; return what result.json contains."""
    clock, source = Clock(), run.start
    model = _load_with_head(source) if run.draft.config.keep_head and source else None
    start = describe_start(run.draft.config, source)
    splits = open_labelled(run.draft.config, run.source)
    head = None if model is None else _take_head(model, splits.train, start.backbone, run.draft.config.from_)
    return run.finish(train_stage(prepare_stage(run, run.draft, splits, head, start_facts=start), run, clock))


def describe_start(config: RunConfig, source: str | None) -> Start:
    """Return the network of --from, and the size of the views it was trained on."""
    backbone = config.backbone or _backbone_of(config.from_ or "")
    result = Path(source or "") / "result.json"
    size = read_record(result, StartResult).get("size") if source and result.is_file() else None
    return Start(backbone, size)


def _backbone_of(source: str) -> str:
    if source and not Path(source).exists():
        raise UserError(f"{source} does not exist. --from takes a run directory, a model folder or a weights file.")
    if not Path(source).is_dir():
        raise UserError(f"{source} does not name its network. Pass --backbone NAME (`vitling list backbones`).")
    return str(read_config(find_bundle(Path(source)))["vitling"]["backbone"])


def _load_with_head(source: str) -> Model:
    if Path(source).is_file():
        raise UserError(f"--keep-head needs a run or a model folder, not a weights file ({source}). {NEW_HEAD}")
    model = load_bundle(find_bundle(source))
    if model.head is None:
        raise UserError(f"--keep-head: {source} is a pre-trained backbone without a head. {NEW_HEAD}")
    return model


def _take_head(model: Model, train: Dataset, backbone: str | None, source: str | None) -> nn.Linear:
    """Return the model's head; raise UserError if its outputs mean something else here."""
    if model.backbone.name != backbone:
        raise UserError(
            f"--keep-head: the head of {source} belongs to {model.backbone.name}, not to {backbone}. Leave out "
            "--backbone, or --keep-head."
        )
    if model.meta.task != train.task:
        several, one = (source, train.name) if model.meta.task == "multi" else (train.name, source)
        raise UserError(f"--keep-head: {several} has several labels per image, {one} has one. {NEW_HEAD}")
    for i, (theirs, ours) in enumerate(zip_longest(model.class_names, train.class_names), 1):
        if theirs != ours:
            raise UserError(
                f"--keep-head: the classes of {source} and {train.name} differ, first at number {i}: "
                f"{_quote(theirs)} there, {_quote(ours)} here. {NEW_HEAD}"
            )
    assert model.head is not None
    return model.head


def _quote(name: str | None) -> str:
    return "none" if name is None else f'"{name}"'
