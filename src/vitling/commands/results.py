"""Results that several commands print: a trained classifier, several seeds, the names of metrics."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vitling.commands.settings_table import print_settings
from vitling.console import Console, echo, is_main_process
from vitling.evaluation.intervals import format_interval
from vitling.formatting import format_count
from vitling.metric_names import METRIC_NAMES, MetricName

_RESULT_METRICS = ("top1", "top5", "mean_per_class", "mean_average_precision", "calibration_error")


def format_percent(fraction: float) -> str:
    return f"{fraction:.2%}"


def select_metrics(classes: int, keys: Sequence[str] = _RESULT_METRICS) -> list[MetricName]:
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
    other_size = result.get("judged_at", result["size"]) != result["size"]
    if other_size:
        echo(f"evaluated at {result['judged_at']} px (--test-size):")
    Console().print(_score_table(result))
    large = result.get("stages", {}).get("large", {})
    if "last" in large:
        if other_size:
            echo(f"large, evaluated at {large['size']} px:")
        Console().print(_score_table({**result, "best": {}, "last": large["last"], "epochs": large["epochs"]}))


def _score_table(result: dict[str, Any]) -> Table:
    """Tabulate the last epoch and the best on validation."""
    rows = [
        (weights, split, result[weights])
        for weights in ("last", "best")
        for split in ("val", "test")
        if split in result.get(weights, {})
    ]
    metrics = [m for m in select_metrics(result["classes"]) if any(m.key in row[split] for _, split, row in rows)]
    table = Table()
    columns = [metric.short or metric.display for metric in metrics]
    if has_top1 := columns[:1] == [METRIC_NAMES["top1"].display]:
        columns.insert(1, "95 %")
    for column in ("weights", "split", "images", *columns):
        table.add_column(column, justify="left" if column in ("weights", "split") else "right", no_wrap=True)
    for weights, split, scores in rows:
        found = scores[split]
        numbers = [m.format(found[m.key]) if m.key in found else "" for m in metrics]
        if has_top1:
            numbers.insert(1, format_interval(found["top1"], found["n"]) if "top1" in found else "")
        table.add_row(f"{weights} ({scores.get('epoch', '?')})", split, f"{found['n']:,}", *numbers)
    if not rows:
        table.add_row(f"last ({result['epochs']})", "none held out", "")
    table.caption = "weights of the last epoch and of the best on val, with the epoch" if "best" in result else None
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
    table = Table("score")
    for column in ("mean", "95 %", "std", "seeds"):
        table.add_column(column, justify="right")
    for name, found in result["scores"].items():
        *words, metric = name.split()
        shown = " ".join((*words, METRIC_NAMES[metric].display if metric in METRIC_NAMES else metric))
        mean = format_percent(found["mean"])
        std = "" if found["deviation"] is None else format_percent(found["deviation"])
        interval = format_interval(found["mean"], found["images"]) if "images" in found else ""
        table.add_row(shown, mean, interval, std, str(len(found["values"])))
    table.caption = "95 %: interval of the mean, from the number of images; std: over the seeds"
    Console().print(table)
    echo(f"Saved to {out}, a run directory for each seed")
    print_group_report(out)
