"""Results that several commands print: a trained classifier, several seeds, the names of metrics."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from vitling.commands.settings_table import print_settings
from vitling.console import Console, echo, is_main_process, make_table
from vitling.evaluation.intervals import format_interval
from vitling.formatting import format_count
from vitling.metric_names import METRIC_NAMES, MetricName
from vitling.records import iterate_scores

ScoreRow = tuple[str, str, dict[str, Any]]  # weights, split, metrics

_MAX_CLASSES = 20  # rows of the table of classes; evaluation.json has all
RESULT_METRICS = ("top1", "top5", "mean_per_class", "mean_average_precision", "calibration_error")


def format_percent(fraction: float | None, digits: int = 2) -> str:
    return "" if fraction is None else f"{fraction:.{digits}%}"


def select_metrics(classes: int, keys: Sequence[str] = RESULT_METRICS) -> list[MetricName]:
    """Return the metrics worth printing: top-5 of five classes is always 100 %."""
    return [METRIC_NAMES[key] for key in keys if key != "top5" or classes > 5]


def print_run(result: dict[str, Any], config: Any) -> None:
    """Print the results of a run, the files it wrote, and the command that uses its model."""
    out = config.out
    for name, stage in result.get("stages", {"": result}).items():
        echo(
            f"{name or result['backbone']} at {stage['size']} px, {stage['images']:,} images, "
            f"{format_count(stage['epochs'], 'epoch')}, {stage['seconds']:.0f} s, "
            f"peak {stage['images_per_second']:,.0f} images/s"
        )
    if "classes" not in result:
        echo(f"Saved to {out}\n  model/ contains the network, without a head because the data has no labels")
        echo(f"Use it: vitling embed {shlex.quote(out)} IMAGES --out features.npz")
        return
    _print_scores(result)
    large = "large" in result.get("stages", {})
    echo(f"Saved to {out}" + (", with the model of the larger size in large/" if large else ""))
    echo("  model/ contains the weights of the last epoch" + (", best/ the best on val" if "best" in result else ""))
    if {"val", "test"} & result["last"].keys():
        echo("  evaluation.json contains all metrics, also of each class")
        echo("  mistakes.csv lists the images that the last epoch's model gets wrong")
    if (Path(out) / "report.html").exists():
        echo("  report.html shows the results, curves and mistakes, and a map of the images")
    echo(f"Use it: vitling predict {shlex.quote(out)} IMAGES")


def _print_scores(result: dict[str, Any]) -> None:
    other_size = result.get("evaluated_at", result["size"]) != result["size"]
    if other_size:
        echo(f"evaluated at {result['evaluated_at']} px (--test-size):")
    Console().print(_score_table(result))
    large = result.get("stages", {}).get("large", {})
    if "last" in large:
        if other_size:
            echo(f"large, evaluated at {large['size']} px:")
        Console().print(_score_table({**result, "best": {}, "last": large["last"], "epochs": large["epochs"]}))


def _score_table(result: dict[str, Any]) -> Table:
    """Tabulate the last epoch and the best on validation."""
    rows = list_score_rows(result)
    table = make_score_table(rows, [_format_scores(scores, result["classes"]) for *_, scores in rows])
    if not rows:
        table.add_row(f"last ({result['epochs']})", "none held out", "")
    table.caption = "weights of the last epoch and of the best on val, with the epoch" if "best" in result else None
    return table


def _format_scores(scores: dict[str, Any], classes: int) -> dict[str, str]:
    texts: dict[str, str] = {}
    for metric in select_metrics(classes):
        if metric.key in scores:
            texts[metric.short or metric.display] = metric.format(scores[metric.key])
            if metric.key == "top1":
                texts["95 %"] = format_interval(scores["top1"], scores["n"])
    return texts


def list_score_rows(result: dict[str, Any]) -> list[ScoreRow]:
    """List the scores of a run; its weights are named with their epoch."""
    return [
        (f"{weights} ({result[weights].get('epoch', '?')})", split, scores)
        for weights, split, scores in iterate_scores(result)
    ]


def make_score_table(rows: Sequence[ScoreRow], texts: Sequence[dict[str, str]]) -> Table:
    """Tabulate weights, split, number of images, and the formatted metrics of each row in `texts`."""
    metrics = dict.fromkeys(name for own in texts for name in own)
    table = make_table([Column(name, no_wrap=True) for name in ("weights", "split")], ("images", *metrics))
    for (weights, split, scores), own in zip(rows, texts):
        table.add_row(weights, split, f"{scores['n']:,}", *(own.get(name, "") for name in metrics))
    return table


def make_class_table(
    rows: Sequence[dict[str, Any]], key: str, what: str, format_row: Callable[[dict[str, Any]], dict[str, str]]
) -> Table:
    """Tabulate the classes with the lowest value of `key`, called `what`, first."""
    worst = sorted(rows, key=lambda row: (row[key] is None, row[key] or 0.0))[:_MAX_CLASSES]
    texts = [format_row(row) for row in worst]
    columns = list(dict.fromkeys(name for own in texts for name in own))
    table = make_table(["class"], columns)
    for row, own in zip(worst, texts):
        table.add_row(row["class"], *(own.get(column, "") for column in columns))
    if len(rows) > _MAX_CLASSES:
        table.caption = f"the {_MAX_CLASSES} of {len(rows)} classes with the lowest {what}"
    return table


def run_training(
    config: Any, train: Callable[[Any], dict[str, Any]], print_result: Callable[[dict[str, Any], Any], None]
) -> dict[str, Any] | None:
    """Train once, or once per seed, and print the result; with --explain, print the settings instead.

    Return the result of a single run.
    """
    from vitling.runs.group import resumes_group, train_seeds
    from vitling.runs.report import report_group

    if config.explain:
        print_settings(config)
        return None
    if config.seeds > 1 or resumes_group(config):
        result = train_seeds(config, train)
        if is_main_process():
            if config.report:
                report_group(config.out)
            _print_seeds(result, config.out)
        return None
    result = train(config)
    if is_main_process():
        print_result(result, config)
    return result


def print_group_report(out: str) -> None:
    if (path := Path(out) / "report.html").exists():
        echo(f"  {path} shows the runs side by side")


def _print_seeds(result: dict[str, Any], out: str) -> None:
    caption = "95 %: interval of the mean, from the number of images; std: over the seeds"
    table = make_table(["score"], ("mean", "95 %", "std", "seeds"), caption)
    for name, found in result["scores"].items():
        *words, metric = name.split()
        shown = " ".join((*words, METRIC_NAMES[metric].display if metric in METRIC_NAMES else metric))
        mean, std = format_percent(found["mean"]), format_percent(found["std"])
        interval = format_interval(found["mean"], found["images"]) if "images" in found else ""
        table.add_row(shown, mean, interval, std, str(len(found["values"])))
    Console().print(table)
    echo(f"Saved to {out}, a run directory for each seed")
    print_group_report(out)
