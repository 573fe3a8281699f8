"""Which method of pre-training serves these images best? Each has the same time, the same network and the same images.

The answer is chosen on held-out images of the training split; the test split stays closed.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from vitling.console import Log, is_main_process
from vitling.data.splits import read_splits
from vitling.errors import RunAborted, UserError
from vitling.evaluation.comparison import compare_pair, rank_runs
from vitling.files import check_writable, read_json, write_json
from vitling.formatting import format_count
from vitling.methods.registry import METHODS, check_task
from vitling.metric_names import primary_metric
from vitling.runs.asked import as_asked, check_told_what_to_do, written_down
from vitling.runs.running import check_labels
from vitling.runs.train import FIRST, train
from vitling.settings.config import ComparisonConfig, TrainConfig
from vitling.settings.names import as_flags
from vitling.settings.plan import OF_TWO_STAGES
from vitling.training.processes import init_processes
from vitling.training.rundir import describe_environment

RESULT = "comparison.json"
DEFAULT_HOLD_OUT = "0.2"
BASELINE = "supervised"  # the labels at once: what a first stage has to beat

Row = dict[str, Any]


def compare_methods(config: ComparisonConfig) -> dict[str, Any]:
    """Trains with each method and gives what is also in comparison.json."""
    every = config.methods == type(config)().methods
    config = as_asked(config, **({} if every else {"methods": config.methods}))
    _check(config)
    chosen, log, rows = _in_order(config.methods), Log(silent=not is_main_process()), []
    minutes = config.minutes or 0
    in_all = f"about {round(len(chosen) * minutes, 1):g} minutes in all"
    log.info(f"{format_count(len(chosen), 'method')}, {minutes:g} minutes each: {in_all}.")
    with init_processes(config.loop.device), written_down(config) as one_is_done:
        before = _rows_of_before(config)
        for i, method in enumerate(chosen, 1):
            log.info(f"Method {i} of {len(chosen)}, {method}: {METHODS[method].summary}.")
            rows.append(_row(method, _run_of(config, method), log))
            one_is_done()
            _write(config, [*rows, *(before[other] for other in chosen[i:] if other in before)])
    return read_json(Path(config.out) / RESULT)


def _check(config: ComparisonConfig) -> None:
    if not config.source or not config.out:
        raise UserError("Which images, and where to? vitling compare-methods DATA --out DIR")
    if config.minutes is None or not config.minutes > 0:
        raise UserError("--minutes must be more than 0: it is the time that each method has.")
    unknown = [method for method in config.methods if method not in METHODS]
    if unknown or not config.methods:
        known, given = ", ".join(METHODS), " ".join(unknown)
        raise UserError(f"--methods {given or 'names none'}: there is {known}. Name them with spaces between.")
    if config.val == "none":
        raise UserError("--val none leaves no images to compare the methods by.")
    splits = read_splits(config.source, config.data)
    if splits.train.task == "none":
        raise UserError("Methods are compared by how well labels are learnt after them, and these images have none.")
    check_labels(config, splits)
    for method in config.methods:
        check_task(method, splits.train.task)
    check_writable(Path(config.out) / RESULT)
    there = Path(config.out)
    if is_main_process() and there.exists() and any(there.iterdir()):  # other processes may find what the first wrote
        check_told_what_to_do(config)


def _in_order(methods: tuple[str, ...]) -> list[str]:
    """The baseline first: it compiles the network of the second stage, which then costs none of the others."""
    return sorted(dict.fromkeys(methods), key=lambda method: method != BASELINE)


def _run_of(config: ComparisonConfig, method: str) -> TrainConfig:
    """What was said of other methods, or of a stage that this one has not, is not said to it."""
    usual = TrainConfig()
    others = {m.field for name, m in METHODS.items() if m.field and name != method}
    foreign = others | set(OF_TWO_STAGES if method == BASELINE else ())
    known: dict[str, Any] = {
        f.name: getattr(usual if f.name in foreign else config, f.name) for f in fields(TrainConfig)
    }
    said = [name for name in config.said if name.partition(".")[0] not in foreign]
    known["said"] = (*said, "method")  # a first stage that was asked for is kept, whatever the time
    if config.val is None and read_splits(config.source, config.data).val is None:
        known["val"] = DEFAULT_HOLD_OUT
    return TrainConfig(**known | {"out": str(Path(config.out) / method), "method": method, "test": False})


def _row(method: str, config: TrainConfig, log: Log) -> Row:
    """A method that gives up, as on a collapse, says why; the others go on."""
    try:
        result = train(config)
    except RunAborted as problem:
        log.warning(f"{method} stopped: {problem}")
        return {"method": method, "stopped": str(problem)}
    judged = result["last"]["val"]
    metric = primary_metric(multi_label="top1" not in judged)
    known = {"method": method, "metric": metric, "value": judged[metric], "images": judged["n"]}
    flags = as_flags(config, ("out", "resume", "overwrite", "method", "minutes"))
    return known | _before(config, result) | {"flags": flags}


def _before(config: TrainConfig, result: dict[str, Any]) -> Row:
    """Epochs and seconds of the stages, and k-NN after the first."""
    first = Path(config.out) / FIRST / "result.json"
    stages = [*([read_json(first)] if first.exists() else []), result]
    knn = [value for name, value in stages[0]["last"].items() if name.startswith("knn/")]
    both = {name: [stage[name] for stage in stages] for name in ("epochs", "seconds")}
    return both | ({"knn": knn[0]} if knn else {})


def _rows_of_before(config: ComparisonConfig) -> dict[str, Row]:
    """Of a comparison that is resumed: if it is stopped again, nothing of it is lost."""
    path = Path(config.out) / RESULT
    return {row["method"]: row for row in read_json(path)["rows"]} if config.resume and path.exists() else {}


def _write(config: ComparisonConfig, rows: list[Row]) -> None:
    about = {
        "data": config.source,
        "minutes": config.minutes,
        "seed": config.seed,
        "environment": describe_environment(),
    }
    ended = [row["method"] for row in rows if "value" in row]
    write_json(Path(config.out) / RESULT, {**about, "rows": rows, "differences": _differences(config, ended)})


def _differences(config: ComparisonConfig, methods: list[str]) -> list[dict[str, Any]]:
    """The method that is ahead beside each of the others, on the same held-out images."""
    if len(methods) < 2:
        return []
    runs = {method: [Path(config.out) / method] for method in methods}
    _, (best, *others) = rank_runs(runs, "val", "last")
    return [compare_pair(best, other) for other in others]
