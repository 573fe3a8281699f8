"""Read the files of a run for its report: scores, settings, curves, warnings, and how to make it again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from vitling.errors import InvalidFile, UserError
from vitling.evaluation.intervals import wilson_interval
from vitling.files import is_run
from vitling.formatting import format_count
from vitling.loading import read_bytes, read_json_lines, read_record
from vitling.metric_names import DENSE_METRICS, METRIC_NAMES
from vitling.ranges import check_ranges
from vitling.records import Environment, MetricsLine, RunResult, Share
from vitling.report.data import ClassScore, Curve, Errors, Origin, Score, Setting, Stage
from vitling.report.specs import SECOND
from vitling.runs.group import require_run
from vitling.settings.config import TrainConfig
from vitling.settings.listing import list_settings
from vitling.settings.resolve import Resolved
from vitling.settings.saved import load_resolved
from vitling.settings.stages import LARGE_FOLDER, PRETRAIN_FOLDER
from vitling.settings.verbs import CONFIGS

_NOT_CURVES = ("kind", "step", "epoch", "images_per_second", "data_wait", "grad_norm")
_AP_BY_SIZE = tuple(f"{kind}_ap_{size}" for kind in ("box", "mask") for size in ("small", "medium", "large"))
_OTHERS = ("top5", "mean_per_class", "calibration_error", "log_loss", *DENSE_METRICS, *_AP_BY_SIZE)
_WARNING = re.compile(r"^[\d-]+ [\d:]+ Warning: (.*)$")
HEADLINES = {
    "top1": "top-1 accuracy",
    "mean_average_precision": "mean average precision",
    "mean_iou": "mean IoU",
    "box_ap": "box AP",
}


ClassScores = TypedDict("ClassScores", {"class": str, "n": int, "recall": Share | None, "precision": Share | None})


class SplitEvaluation(TypedDict):
    per_class: list[ClassScores]
    confusion: NotRequired[list[list[int]]]


class WeightsEvaluation(TypedDict, total=False):
    val: SplitEvaluation
    test: SplitEvaluation


class Evaluation(TypedDict, total=False):
    """evaluation.json of a run."""

    last: WeightsEvaluation
    best: WeightsEvaluation


class TestOpening(TypedDict):
    """A line of test-openings.jsonl."""

    time: str
    why: str


@dataclass(frozen=True)
class RunFiles:
    """A finished run on disk."""

    name: str
    folder: Path

    @cached_property
    def config_values(self) -> dict[str, Any]:
        return read_record(self.folder / "config.json", dict[str, Any])

    @cached_property
    def result(self) -> dict[str, Any]:
        return read_record(self.folder / "result.json", RunResult)

    @cached_property
    def environment(self) -> dict[str, Any]:
        return read_record(self.folder / "environment.json", Environment)

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        path = self.folder / "evaluation.json"
        return read_record(path, Evaluation) if path.exists() else {}

    @cached_property
    def resolved(self) -> Resolved:
        kind = CONFIGS.get(str(self.config_values.get("verb", "train")), TrainConfig)
        path = self.folder / "config.json"
        resolved = load_resolved(kind, self.config_values, path)
        check_ranges(resolved.config, where=path)
        return resolved

    @property
    def has_classifier(self) -> bool:
        return "classes" in self.result

    @property
    def is_dense(self) -> bool:
        """Return whether the run detects or segments."""
        return self.result.get("task") in ("detect", "segment")

    @cached_property
    def stages(self) -> list[tuple[str, RunFiles]]:
        """The run and the runs it consists of or starts from, in the order of training, with their titles."""
        inside = self.folder / PRETRAIN_FOLDER
        before = [folder for folder in (inside, Path(self.resolved.config.from_ or inside)) if is_run(folder)]
        first = RunFiles(f"{self.name}/{PRETRAIN_FOLDER}", before[0]) if before else None
        if first is not None and self.has_classifier:
            found = [("First stage", first), (SECOND, self)]
        elif first is not None and first.folder == inside:  # `train` without labels has a first stage alone
            found = [("", first)]
        else:
            found = [("", self)]
        large = self.folder / LARGE_FOLDER
        return [*found, *([("Larger size", RunFiles(self.name, large))] if is_run(large) else [])]


def open_files(name: str, folder: Path) -> RunFiles:
    """Open a finished run; raise UserError if it has not finished."""
    require_run(name, folder)
    if not (folder / "result.json").exists():
        raise UserError(f"{name} has not finished; continue it with --resume.")
    return RunFiles(name, folder)


def list_scores(files: RunFiles) -> list[Score]:
    """List the scores, the most important first: of test before val, and of the last epoch before the best."""
    result = files.result
    large = result.get("stages", {}).get("large", {})
    groups = [("last epoch", result.get("last", {})), ("best epoch on val", result.get("best", {}))]
    groups += [(f"larger size, {large['size']} px", large.get("last", {}))] if large else []
    return [
        _make_score(weights, split, numbers[split])
        for weights, numbers in groups
        for split in ("test", "val")
        if HEADLINES.keys() & numbers.get(split, {}).keys()
    ]


def _make_score(weights: str, split: str, numbers: dict[str, Any]) -> Score:
    key = next(key for key in HEADLINES if key in numbers)
    value, images = numbers[key], numbers.get("n", 0)
    interval = wilson_interval(value, images) if key == "top1" and value is not None and images else None
    shown = (k for k in _OTHERS if k in numbers and k != key)
    formatted = {k: METRIC_NAMES[k].format(numbers[k]).replace("%", "\u00a0%") for k in shown}
    others = ((METRIC_NAMES[k].display, text) for k, text in formatted.items())
    return Score(weights, split, HEADLINES[key], value, images, interval, tuple(others))


def read_errors(files: RunFiles, split: str) -> Errors | None:
    """Read the tables by class of evaluation.json."""
    full = files.evaluation.get("last", {}).get(split)
    if not full:
        return None
    confusion = tuple(tuple(row) for row in full.get("confusion", ()))
    classes = tuple(ClassScore(r["class"], r["n"], r["recall"], r["precision"]) for r in full["per_class"])
    if confusion and {len(confusion), *map(len, confusion)} != {len(classes)}:
        expected = f"expected a confusion matrix of {len(classes)} by {len(classes)} classes"
        raise InvalidFile(files.folder / "evaluation.json", expected)
    return Errors(split, confusion, classes)


def list_facts(files: RunFiles, held_out: dict[str, int]) -> list[tuple[str, str]]:
    """Describe data, network, time and machine in a line each; `held_out`: number of images by split."""
    result, config, environment = files.result, files.resolved.config, files.environment
    images = [f"{format_count(result['images'], 'training image')}"]
    images += [f"{n:,} {split}" for split, n in held_out.items()]
    parameters = f", {result['parameters'] / 1e6:.2g} M parameters" if "parameters" in result else ""
    facts = [
        ("Data", f"{', '.join(images)}; {config.source}"),
        ("Network", f"{result['backbone']} at {result['size']} px{parameters}"),
        ("Method", _describe_method(files)),
        ("Time", "; ".join(_describe_time(title, stage) for title, stage in files.stages)),
        ("Machine", _describe_machine(environment)),
    ]
    if isinstance(knn := result["last"].get("knn/top1"), float):
        facts.insert(0, ("Features", f"k-NN accuracy {knn:.1%} at the end"))
    return facts


def _describe_method(files: RunFiles) -> str:
    methods = [stage.result.get("method", "") for _, stage in files.stages if _has_result(stage)]
    shown = " then ".join(dict.fromkeys(name for name in methods if name))
    shown += " (labels only)" if shown == "supervised" else ""
    aux = files.result.get("aux", "none")
    return shown + (f", with {aux}" if aux != "none" else "")


def _describe_time(title: str, stage: RunFiles) -> str:
    if not _has_result(stage):
        return f"{title.lower()}: not finished"
    result = stage.result
    epochs = format_count(result["epochs"], "epoch")
    text = f"{epochs} in {format_seconds(result['seconds'])}, peak {result['images_per_second']:,.0f} images/s"
    return f"{title.lower()}: {text}" if title else text


def format_seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _describe_machine(environment: dict[str, Any]) -> str:
    cpus = format_count(environment.get("cpus", 0), "CPU core")
    parts = [environment.get("gpu") or cpus]
    if environment.get("processes", 1) > 1:
        parts.append(f"{environment['processes']} processes")
    return ", ".join(parts)


def list_warnings(files: RunFiles) -> list[str]:
    """List the warnings of the log and of the result, each once."""
    found = [line for _, stage in files.stages if _has_result(stage) for line in stage.result.get("warnings", [])]
    for folder in dict.fromkeys((files.folder, *(stage.folder for _, stage in files.stages))):
        log = folder / "log.txt"
        lines = read_bytes(log).decode(errors="replace").splitlines() if log.exists() else []
        lines = [line for line in lines if not line.endswith(":")]  # without the heading of a list
        found += [match[1] for line in lines if (match := _WARNING.match(line))]
    if bad := files.result.get("bad_files"):
        found.append(f"{format_count(bad, 'image')} could not be read and {'was' if bad == 1 else 'were'} left out.")
    return list(dict.fromkeys(found))


def _has_result(stage: RunFiles) -> bool:
    return (stage.folder / "result.json").exists()


def list_stages(files: RunFiles) -> list[Stage]:
    stages = []
    for title, stage in files.stages:
        is_first = stage.folder.name == PRETRAIN_FOLDER and stage.folder.parent == files.folder
        rows = [
            Setting(row.flag, row.value, row.origin.layer, row.origin.reason)
            for row in list_settings(stage.resolved, is_first)
        ]
        stages.append(Stage(title, tuple(rows)))
    return stages


def list_curves(files: RunFiles) -> list[Curve]:
    return [curve for title, stage in files.stages for curve in read_curves(title, stage.folder / "metrics.jsonl")]


def read_curves(stage: str, path: Path) -> Iterator[Curve]:
    """Read the metrics of the epochs in a metrics.jsonl."""
    points: dict[str, dict[float, float]] = {}
    for entry in read_json_lines(path, MetricsLine) if path.exists() else ():
        if entry["kind"] != "epoch":
            continue
        for name, value in entry.items():
            if name not in _NOT_CURVES and isinstance(value, int | float):
                points.setdefault(name, {})[entry["epoch"]] = value
    for name, by_epoch in points.items():
        yield Curve(stage, name, tuple(by_epoch), tuple(by_epoch.values()))


def read_origin(files: RunFiles) -> Origin:
    config, environment = files.resolved.config, files.environment
    packages = {name: text for name, text in environment.get("packages", {}).items() if text}
    versions = {"Python": environment.get("python", "?"), **packages, "System": environment.get("system", "?")}
    path = files.folder / "test-openings.jsonl"
    openings = read_json_lines(path, TestOpening) if path.exists() else []
    seeds = [("Seed", str(config.seed)), ("Seed of the hold-out", str(config.hold_out_seed()))]
    return Origin(
        command=environment.get("command", ""),
        commit=environment.get("commit"),
        seeds=tuple(seeds),
        versions=tuple(versions.items()),
        config=json.dumps(files.config_values, indent=2, ensure_ascii=False),
        test_openings=tuple(f"{one['time'].replace('T', ' ')}: {one['why']}" for one in openings),
    )
