"""What a person reads at the end of a run."""

from __future__ import annotations

from typing import Any

from rich.table import Table

_NAMES = {
    "top1": "top-1",
    "top5": "top-5",
    "mean_per_class": "mean per class",
    "mean_average_precision": "mAP",
    "calibration_error": "calibration error",
}


def result_table(result: dict[str, Any]) -> Table:
    """Last epoch and best on validation, both named."""
    rows = [
        (weights, split, result[weights])
        for weights in ("last", "best")
        for split in ("val", "test")
        if split in result.get(weights, {})
    ]
    metrics = [key for key in _NAMES if any(key in judged[split] for _, split, judged in rows)]
    table = Table("weights", "epoch", "split", "images", *(_NAMES[key] for key in metrics), title=_title(result))
    for weights, split, judged in rows:
        name = "last epoch" if weights == "last" else "best on val"
        numbers = (f"{100 * judged[split][key]:.2f} %" if key in judged[split] else "" for key in metrics)
        table.add_row(name, str(judged["epoch"]), split, str(judged[split]["n"]), *numbers)
    if not rows:
        table.add_row("last epoch", str(result["epochs"]), "none held out", "")
    return table


def evaluation_table(result: dict[str, Any]) -> Table:
    table = Table(f"{result['split']} of {result['data']}", f"{result['n']} images")
    for key, name in _NAMES.items():
        if key in result:
            table.add_row(name, f"{100 * result[key]:.2f} %")
    return table


def class_table(rows: list[dict[str, Any]], most: int = 20) -> Table:
    """The classes that are recognised worst, first."""
    worst = sorted(rows, key=lambda row: (row["recall"] is None, row["recall"] or 0.0))
    table = Table("class", "images", "recall", "precision", "f1")
    for row in worst[:most]:
        numbers = ("" if row[key] is None else f"{100 * row[key]:.1f} %" for key in ("recall", "precision", "f1"))
        table.add_row(row["class"], str(row["n"]), *numbers)
    if len(rows) > most:
        table.caption = f"the {most} of {len(rows)} classes with the lowest recall"
    return table


def _title(result: dict[str, Any]) -> str:
    return (
        f"{result['backbone']} at {result['size']} px, {result['images']} images, {result['epochs']} epochs, "
        f"{result['seconds']:.0f} s, {result['images_per_second']:.0f} images/s"
    )
