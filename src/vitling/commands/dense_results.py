"""Results of detection and segmentation that several commands print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from vitling.console import Console, echo
from vitling.formatting import format_count
from vitling.metric_names import DENSE_METRICS, METRIC_NAMES

_MAX_COLUMNS = 3  # metrics beside each other; a terminal has 80 characters
_SIZES = ("small", "medium", "large")  # of objects, as in COCO
_MAX_CLASSES = 20  # rows of the table of classes; evaluation.json has all


def print_dense_run(result: dict[str, Any], config: Any) -> None:
    """Print the results of a run, the files it wrote, and the command that uses its model."""
    out = config.out
    echo(
        f"{result['method']} on {result['backbone']} at {result['size']} px, {result['images']:,} images, "
        f"{format_count(result['epochs'], 'epoch')}, {result['seconds']:.0f} s, "
        f"{result['images_per_second']:,.1f} images/s"
    )
    rows = [
        (f"{weights} ({result[weights].get('epoch', '?')})", split, result[weights][split])
        for weights in ("last", "best")
        for split in ("val", "test")
        if split in result.get(weights, {})
    ]
    if rows:
        Console().print(make_score_table(rows))
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
    console = Console()
    console.print(make_score_table([(result["weights"], result["split"], result)]))
    console.print(_make_class_table(result["per_class"]))


def make_score_table(rows: list[tuple[str, str, dict[str, Any]]]) -> Table:
    """Tabulate weights, split and every metric that a row has; with many metrics, one in each line."""
    texts = [_format_metrics(found) for _, _, found in rows]
    metrics = list(dict.fromkeys(name for some in texts for name in some))
    if len(metrics) > _MAX_COLUMNS:
        table = Table("metric", *(Column(f"{weights}, {split}", justify="right") for weights, split, _ in rows))
        table.add_row("images", *(f"{found['n']:,}" for _, _, found in rows))
        for name in metrics:
            table.add_row(name, *(some.get(name, "") for some in texts))
        return table
    table = Table(Column("weights", no_wrap=True), Column("split", no_wrap=True))
    for column in ("images", *metrics):
        table.add_column(column, justify="right", no_wrap=True)
    for (weights, split, found), some in zip(rows, texts):
        table.add_row(weights, split, f"{found['n']:,}", *(some.get(name, "") for name in metrics))
    return table


def _format_metrics(found: dict[str, Any]) -> dict[str, str]:
    """Format the metrics of a split by their names; AP of small, medium and large objects is one entry."""
    known = [METRIC_NAMES[key] for key in DENSE_METRICS if found.get(key) is not None]
    texts = {metric.short or metric.display: _format(found[metric.key]) for metric in known}
    for kind in ("box", "mask"):
        values = [found.get(f"{kind}_ap_{size}") for size in _SIZES]
        if any(value is not None for value in values):
            texts[f"{kind} AP S/M/L"] = " / ".join("-" if value is None else f"{100 * value:.1f}" for value in values)
    return texts


def _make_class_table(rows: list[dict[str, Any]]) -> Table:
    """Tabulate the classes with the lowest first figure."""
    columns = [name for name in rows[0] if name not in ("class", "n")] if rows else []
    worst = sorted(rows, key=lambda row: (row[columns[0]] is None, row[columns[0]] or 0.0))
    table = Table("class")
    for column in ("n", *columns):
        display = METRIC_NAMES[column].display if column in METRIC_NAMES else column
        table.add_column(display, justify="right", no_wrap=True)
    for row in worst[:_MAX_CLASSES]:
        table.add_row(row["class"], f"{row['n']:,}", *(_format(row[column]) for column in columns))
    if len(rows) > _MAX_CLASSES:
        table.caption = f"the {_MAX_CLASSES} of {len(rows)} classes with the lowest score"
    return table


def _format(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"
