"""Types of the JSON files of runs and studies that several modules read; other types are beside their readers.

They have the keys that vitling reads back. Additional keys are kept and not checked. `loading.read_record` checks a
file against these types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired, Required, TypedDict

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
Number = Finite | None
Duration = Annotated[float, Meta(ge=0, le=1e10)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Scores(TypedDict, total=False):
    """Metrics on one split."""

    n: Required[Annotated[int, Meta(ge=1)]]
    top1: Share
    top5: Share
    mean_per_class: Share
    mean_average_precision: Share | None
    log_loss: Finite
    calibration_error: Share
    mean_iou: Share | None
    mean_class_accuracy: Share | None
    pixel_accuracy: Share | None
    box_ap: Share | None
    box_ap50: Share | None
    box_ap75: Share | None
    mask_ap: Share | None
    mask_ap50: Share | None
    mask_ap75: Share | None


class EpochFigures(TypedDict, total=False):
    """Figures of the last or the best epoch."""

    epoch: Count
    val: Scores
    test: Scores


class _Training(TypedDict):
    size: Count
    images: Count
    epochs: Count
    seconds: Duration
    images_per_second: Finite


class StageResult(_Training):
    """A stage in result.json."""

    last: NotRequired[EpochFigures]


class RunResult(_Training):
    """result.json of a run."""

    backbone: str | None
    seed: int
    accumulate: int
    last: EpochFigures
    best: NotRequired[EpochFigures]
    method: NotRequired[str]
    classes: NotRequired[Count]
    evaluated_at: NotRequired[Count]
    parameters: NotRequired[Count]
    aux: NotRequired[str]
    task: NotRequired[str]
    bad_files: NotRequired[Count]
    warnings: NotRequired[list[str]]
    stages: NotRequired[dict[str, StageResult]]


def iterate_scores(result: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield weights, split and metrics of a RunResult: the last epoch before the best, val before test."""
    for weights in ("last", "best"):
        for split in ("val", "test"):
            if split in result.get(weights, {}):
                yield weights, split, result[weights][split]


class Environment(TypedDict, total=False):
    """environment.json."""

    command: str
    python: str
    packages: dict[str, str | None]
    commit: str | None
    system: str
    gpu: str | None
    cpus: int
    processes: int


class StepLine(TypedDict):
    """The part of a line of metrics.jsonl that gives its position."""

    step: Annotated[int, Meta(ge=1)]


class MetricsLine(StepLine):
    """A line of metrics.jsonl."""

    kind: str
    epoch: Annotated[int, Meta(ge=1)]
    epochs: NotRequired[Annotated[int, Meta(ge=1)]]  # of the run, in lines of kind "length": it was changed


class RowStage(TypedDict, total=False):
    """Stage of a row."""

    stage: str
    folder: str
    shared: bool
    seconds: Duration
    warnings: list[str]
    gpu: str | None
    commit: str | None


class Curve(TypedDict):
    epoch: list[float]
    value: list[float]


class StudyRow(TypedDict):
    """Row of a results file."""

    run: str
    seed: int
    minutes: Duration
    fingerprint: str
    environment: NotRequired[Environment]
    value: NotRequired[Finite]
    seconds: NotRequired[Duration]
    at_once: NotRequired[int]
    stages: NotRequired[list[RowStage]]
    curves: NotRequired[dict[str, Curve]]
    each: NotRequired[dict[str, float]]
    origin: NotRequired[str]
    caution: NotRequired[str]
    failed: NotRequired[str]
    stopped: NotRequired[str]


class StudyRunRecord(TypedDict):
    """Run of a study, in a results file."""

    run: str
    paper: NotRequired[Number]
    against: NotRequired[str]
    note: NotRequired[str]
    fingerprint: NotRequired[str]


class StudyResults(TypedDict):
    """results/NAME.json of a study."""

    study: str
    title: str
    source: str
    unit: str
    runs_in_all: int
    runs: list[StudyRunRecord]
    rows: list[StudyRow]
    trial: NotRequired[int | None]


class TaskResult(TypedDict, total=False):
    """result.json of a task of a study."""

    value: Number
    folder: str
    seconds: Any
    stages: list[RowStage]
