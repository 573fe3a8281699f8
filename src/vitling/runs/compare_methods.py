"""`compare-methods`: which pre-training method serves these images best, with the same time, network and images.

The methods are compared on held-out images of the training split; the test split stays closed.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypedDict

from vitling.backbones.backbone import make_entry
from vitling.console import Log, is_main_process
from vitling.data.dataset import Splits
from vitling.data.sources import read_source
from vitling.data.splits import read_splits
from vitling.errors import MachineFault, RunAborted, UserError
from vitling.evaluation.comparison import compare_pair, rank_runs
from vitling.files import check_not_link, check_writable, list_names, write_json
from vitling.formatting import format_count
from vitling.loading import read_record
from vitling.methods import METHODS
from vitling.metric_names import primary_metric
from vitling.records import RunResult
from vitling.runs.group import load_request, require_resume_or_overwrite, store_request
from vitling.runs.images import check_labels, gather_stage_facts
from vitling.runs.train import train
from vitling.settings.checks import check_task
from vitling.settings.config import ComparisonConfig, TrainConfig
from vitling.settings.names import to_flags
from vitling.settings.plan import STAGE_SETTINGS, choose_size, default_backbone
from vitling.settings.stages import PRETRAIN_FOLDER
from vitling.training.processes import choose_device, init_processes
from vitling.training.rundir import describe_environment

RESULT = "comparison.json"
DEFAULT_HOLD_OUT = "0.2"
BASELINE = "supervised"  # labels only: what pre-training has to beat

Row = dict[str, Any]


class ComparisonRow(TypedDict):
    method: str


class ComparisonResult(TypedDict):
    """comparison.json."""

    rows: list[ComparisonRow]


def compare_methods(config: ComparisonConfig) -> dict[str, Any]:
    """Train with each method and return what comparison.json contains."""
    every = config.methods == type(config)().methods
    config = load_request(config, **({} if every else {"methods": config.methods}))
    _check(config)
    methods, log, rows = _list_entries(config), Log(silent=not is_main_process()), []
    minutes = config.minutes or 0
    total = f"about {round(len(methods) * minutes, 1):g} minutes in total"
    log.info(f"{format_count(len(methods), 'method')}, {minutes:g} minutes each: {total}.")
    with init_processes(config.loop.device), store_request(config) as count_run:
        before = _read_rows(config)
        for i, method in enumerate(methods, 1):
            summary = METHODS[method].summary if method in METHODS else METHODS[BASELINE].summary
            log.info(f"Method {i} of {len(methods)}: {method} {summary}.")
            rows.append(_train_row(method, _make_request(config, method), log))
            count_run()
            _write(config, [*rows, *(before[other] for other in methods[i:] if other in before)])
    return read_record(Path(config.out) / RESULT, ComparisonResult)


def _check(config: ComparisonConfig) -> None:
    if not config.source or not config.out:
        raise UserError("Images and output directory are missing: vitling compare-methods DATA --out DIR")
    if config.minutes is None or not config.minutes > 0:
        raise UserError(f"--minutes {config.minutes}: must be above 0, the time for each method.")
    unknown = [method for method in config.methods if method not in METHODS]
    if unknown or not config.methods:
        raise UserError(f"--methods {' '.join(unknown)}: choose from {', '.join(METHODS)}, separated by spaces.")
    for backbone in config.baselines:
        make_entry(backbone)  # raises UserError for an unknown name
    if config.val == "none":
        raise UserError("--val none leaves no images to compare the methods on.")
    splits = _read_splits(config)
    if splits.train.task == "none":
        raise UserError("compare-methods needs labels to compare the methods by, and these images have none.")
    check_labels(config, splits)
    for method in config.methods:
        check_task(method, splits.train.task)
    check_writable(Path(config.out) / RESULT)
    out = Path(config.out)
    if is_main_process() and list_names(out):  # the main process may have written to it already
        require_resume_or_overwrite(config)


def _read_splits(config: ComparisonConfig) -> Splits:
    return read_splits(read_source(config.source, config.data, config.labels), config.data)


def _list_entries(config: ComparisonConfig) -> list[str]:
    """List the methods, supervised training first: it compiles the second stage's network, which the others then find
    in the cache. Supervised baselines with other backbones, named supervised-BACKBONE, come last."""
    methods = sorted(dict.fromkeys(config.methods), key=lambda method: method != BASELINE)
    return [*methods, *(f"{BASELINE}-{backbone}" for backbone in dict.fromkeys(config.baselines))]


def _make_request(config: ComparisonConfig, entry: str) -> TrainConfig:
    check_not_link(Path(config.out) / entry)
    own: dict[str, Any] = {"out": str(Path(config.out) / entry)}
    method = entry if entry in METHODS else BASELINE
    if method != entry:
        own["backbone"] = entry.removeprefix(f"{BASELINE}-")
    splits = _read_splits(config)
    if config.backbone is None and choose_device(config.loop.device).type == "cpu":
        # without a GPU the plan has another network for a single stage, and all entries should have the same
        size = config.size or choose_size(None, gather_stage_facts(splits, gpu=False))[0]
        own = {"size": size, "backbone": default_backbone(size, gpu=False)[0]} | own
    request = make_request(config, method, **own)
    needs_hold_out = config.val is None and splits.val is None
    return replace(request, test=False, val=DEFAULT_HOLD_OUT if needs_hold_out else config.val)


def make_request(config: TrainConfig, method: str, **own: Any) -> TrainConfig:
    """Return the settings for training with a method, without those of other methods and of stages it does not have.

    `own`: settings that differ; all but --out count as explicit.
    """
    default = TrainConfig()
    others = {m.field for name, m in METHODS.items() if m.field and name != method}
    foreign = others | set(STAGE_SETTINGS if method == BASELINE else ())
    known: dict[str, Any] = {
        f.name: getattr(default if f.name in foreign else config, f.name) for f in fields(TrainConfig)
    }
    explicit = [name for name in config.explicit if name.partition(".")[0] not in foreign]
    # an explicit first stage is kept however short the time is
    known["explicit"] = (*explicit, "method", *(own.keys() - {"out"}))
    return TrainConfig(**known | own | {"method": method})


def _train_row(method: str, config: TrainConfig, log: Log) -> Row:
    """Train with one method. If it aborts, for instance on a collapse, the row has the reason.

    A full or failing disk ends the comparison instead: it says nothing about the method.
    """
    try:
        result = train(config)
    except MachineFault:
        raise
    except RunAborted as problem:
        log.warning(f"{method} stopped: {problem}")
        return {"method": method, "stopped": str(problem)}
    figures = result["last"].get("val", {})
    metric = primary_metric(multi_label="top1" not in figures)
    if figures.get(metric) is None:  # undefined, or not in a result.json that was changed
        return {"method": method, "stopped": f"{metric} on val is undefined"}
    row = {"method": method, "metric": metric, "value": figures[metric], "images": figures["n"]}
    flags = to_flags(config, ("out", "resume", "overwrite", "method", "minutes"))
    return row | _describe_stages(config, result) | {"flags": flags}


def _describe_stages(config: TrainConfig, result: dict[str, Any]) -> Row:
    """Return epochs and seconds of the stages, and k-NN after the first."""
    first = Path(config.out) / PRETRAIN_FOLDER / "result.json"
    stages = [*([read_record(first, RunResult)] if first.exists() else []), result]
    knn = [value for name, value in stages[0]["last"].items() if name.startswith("knn/")]
    both = {name: [stage[name] for stage in stages] for name in ("epochs", "seconds")}
    return both | ({"knn": knn[0]} if knn else {})


def _read_rows(config: ComparisonConfig) -> dict[str, Row]:
    """Return the rows of a resumed comparison, so that another stop loses none of them."""
    path = Path(config.out) / RESULT
    known = read_record(path, ComparisonResult)["rows"] if config.resume and path.exists() else []
    return {row["method"]: row for row in known}


def _write(config: ComparisonConfig, rows: list[Row]) -> None:
    about = {
        "data": config.source,
        "minutes": config.minutes,
        "seed": config.seed,
        "environment": describe_environment(),
    }
    finished = [row["method"] for row in rows if "value" in row]
    write_json(Path(config.out) / RESULT, {**about, "rows": rows, "differences": _compare(config, finished)})


def _compare(config: ComparisonConfig, methods: list[str]) -> list[dict[str, Any]]:
    """Compare the best method with each of the others on the same held-out images."""
    if len(methods) < 2:
        return []
    runs = {method: [Path(config.out) / method] for method in methods}
    _, (best, *others) = rank_runs(runs, "val", "last")
    return [compare_pair(best, other) for other in others]
