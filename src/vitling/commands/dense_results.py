"""Results of detection and segmentation that several commands print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from vitling.commands.results import ScoreRow, list_score_rows, make_class_table, make_score_table
from vitling.console import Console, echo
from vitling.formatting import format_count
from vitling.metric_names import DENSE_METRICS, METRIC_NAMES

_MAX_COLUMNS = 3  # metrics beside each other; a terminal has 80 characters
_NOT_FIGURES = ("class", "n")  # in a row of a class
_SIZES = ("small", "medium", "large")  # of objects, as in COCO


def print_dense_run(result: dict[str, Any], config: Any) -> None:
    """Print the results of a run, the files it wrote, and the command that uses its model."""
    out = config.out
    echo(
        f"{result['method']} on {result['backbone']} at {result['size']} px, {result['images']:,} images, "
        f"{format_count(result['epochs'], 'epoch')}, {result['seconds']:.0f} s, "
        f"{result['images_per_second']:,.1f} images/s"
    )
    rows = list_score_rows(result)
    if rows:
        Console().print(make_dense_table(rows))
    echo(f"Saved to {out}")
    echo("  model/ contains the weights of the last epoch" + (", best/ the best on val" if "best" in result else ""))
    if rows:
        echo("  evaluation.json contains the figures of each class; pictures/ shows the worst images")
    if (Path(out) / "report.html").exists():
        echo("  report.html shows the results, curves and worst images")
    echo(f"Use it: vitling predict {shlex.quote(out)} IMAGES --out drawn")


def print_dense_evaluation(result: dict[str, Any]) -> None:
    """Print the metrics of one split, and the classes with the lowest score."""
    echo(f"{result['split']} of {result['data']}: {result['n']:,} images, weights: {result['weights']}")
    console, classes = Console(), result["per_class"]
    console.print(make_dense_table([(result["weights"], result["split"], result)]))
    if classes:
        first = next(name for name in classes[0] if name not in _NOT_FIGURES)
        console.print(make_class_table(classes, first, "score", _format_class))


def make_dense_table(rows: list[ScoreRow]) -> Table:
    """Tabulate weights, split and every metric that a row has; with many metrics, one in each line."""
    texts = [_format_metrics(found) for _, _, found in rows]
    metrics = list(dict.fromkeys(name for some in texts for name in some))
    if len(metrics) > _MAX_COLUMNS:
        table = Table("metric", *(Column(f"{weights}, {split}", justify="right") for weights, split, _ in rows))
        table.add_row("images", *(f"{found['n']:,}" for _, _, found in rows))
        for name in metrics:
            table.add_row(name, *(some.get(name, "") for some in texts))
        return table
    return make_score_table(rows, texts)


def _format_metrics(found: dict[str, Any]) -> dict[str, str]:
    """Format the metrics of a split by their names; AP of small, medium and large objects is one entry."""
    known = [METRIC_NAMES[key] for key in DENSE_METRICS if found.get(key) is not None]
    texts = {metric.short or metric.display: _format(found[metric.key]) for metric in known}
    for kind in ("box", "mask"):
        values = [found.get(f"{kind}_ap_{size}") for size in _SIZES]
        if any(value is not None for value in values):
            texts[f"{kind} AP S/M/L"] = " / ".join("-" if value is None else f"{100 * value:.1f}" for value in values)
    return texts


def _format_class(row: dict[str, Any]) -> dict[str, str]:
    texts = {"n": f"{row['n']:,}"}
    for name, value in row.items():
        if name not in _NOT_FIGURES:
            texts[METRIC_NAMES[name].display if name in METRIC_NAMES else name] = _format(value)
    return texts


def _format(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"
