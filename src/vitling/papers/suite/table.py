"""The table of a suite: a row per dataset, a column per network and probe, average and wins. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.table import Column, Table

from vitling.console import Console
from vitling.evaluation.intervals import format_bounds, wilson_interval
from vitling.metric_names import BY_PAPER
from vitling.papers.datasets import ENTRIES
from vitling.papers.suite.config import SuiteConfig

PAPER = {name: entry.published for name, entry in ENTRIES.items() if entry.published}

FIGURE = len("100.0")
WIDE = 10_000  # characters; nothing is folded


@dataclass(frozen=True)
class Cell:
    """One network, dataset and probe. `value` is its metric from 0 to 1, or None if it is undefined (one class)."""

    run: str
    data: str
    probe: str
    metric: str
    value: float | None
    about: dict[str, Any]

    @property
    def images(self) -> int | None:
        """Number of images of an accuracy, which give it an interval; None for other metrics."""
        return self.about["images"]["evaluated"] if BY_PAPER[self.metric].key == "top1" else None

    @property
    def column(self) -> tuple[str, str]:
        return self.run, self.probe


def summarise(cells: Sequence[Cell], config: SuiteConfig) -> dict[str, Any]:
    """Make the summary. The average is over datasets that all columns have; wins are over the first network."""
    columns = [(run, probe) for probe in config.probes for run in config.runs]
    values = {(cell.data, cell.column): cell.value for cell in cells if cell.value is not None}
    intervals = {
        (cell.data, cell.column): wilson_interval(cell.value, cell.images)
        for cell in cells
        if cell.value is not None and cell.images
    }
    names = [name for name in ENTRIES if any(cell.data == name for cell in cells)]
    complete = [name for name in names if all((name, column) in values for column in columns)]
    return {
        "table": config.table,
        "columns": [
            {
                "run": run,
                "probe": probe,
                "average": fmean(values[name, (run, probe)] for name in complete) if complete else None,
                "wins": _count_wins(names, values, (run, probe), (config.runs[0], probe)),
            }
            for run, probe in columns
        ],
        "averaged_over": complete,
        "rows": [
            {
                "data": name,
                "metric": next(cell.metric for cell in cells if cell.data == name),
                "values": [values.get((name, column)) for column in columns],
                "intervals": [intervals.get((name, column)) for column in columns],
                "data_hashes": next(cell.about.get("data_hashes", {}) for cell in cells if cell.data == name),
                "notes": _list_notes(name, cells),
            }
            for name in names
        ],
    }


def _count_wins(names: list[str], values: dict, column: tuple[str, str], first: tuple[str, str]) -> int | None:
    """Count datasets on which a network beats the first one, as EsViT does with its supervised counterpart."""
    if column == first:
        return None
    both = [name for name in names if (name, column) in values and (name, first) in values]
    return sum(values[name, column] > values[name, first] for name in both)


def _list_notes(name: str, cells: Sequence[Cell]) -> list[str]:
    """Note counts of images that differ from the full dataset."""
    entry = ENTRIES[name]
    counts = [cell.about["images"] for cell in cells if cell.data == name]
    seen = {
        "training": ({images["train"] + images["validation"] for images in counts}, entry.trained_on),
        "test": ({images["evaluated"] for images in counts}, entry.test),
    }
    return [
        f"{' or '.join(f'{count:,}' for count in sorted(there))} {what} images, not {full:,}"
        for what, (there, full) in seen.items()
        if there != {full}
    ]


def make_tables(summary: dict[str, Any], console: Console) -> list[Table]:
    """Make one table, or one for each probe if the console is too narrow."""
    whole = make_table(summary)
    probes = dict.fromkeys(column["probe"] for column in summary["columns"])
    if len(probes) == 1 or Console(width=WIDE).measure(whole).maximum <= console.width:
        return [whole]
    return [make_table(_select_probe(summary, probe), title=probe) for probe in probes]


def _select_probe(summary: dict[str, Any], probe: str) -> dict[str, Any]:
    at = [i for i, column in enumerate(summary["columns"]) if column["probe"] == probe]
    rows = [row | {key: [row[key][i] for i in at] for key in ("values", "intervals")} for row in summary["rows"]]
    return summary | {"columns": [summary["columns"][i] for i in at], "rows": rows}


def make_table(summary: dict[str, Any], title: str | None = None) -> Table:
    columns = summary["columns"]
    table = Table(Column("data", no_wrap=True), Column("metric", overflow="fold"), title=title)
    several = len({column["probe"] for column in columns}) > 1
    for column in columns:
        name = column["run"].rstrip("/").rpartition("/")[2]
        heading = f"{name}\n{column['probe']}" if several else name
        table.add_column(heading, justify="right", min_width=FIGURE, overflow="fold")
    shown = summary["table"] in ("all", "esvit-t10") and any(column["probe"] == "logistic" for column in columns)
    paper = shown and any(row["data"] in PAPER for row in summary["rows"])
    if paper:
        for heading in ("supervised\nSwin-T", "EsViT\nSwin-T"):
            table.add_column(heading, justify="right", min_width=FIGURE, overflow="fold")
    for row in summary["rows"]:
        mark = "*" if row["notes"] else ""
        figures = [f"{figure:.1f}" for figure in PAPER.get(row["data"], ())] or ["", ""]
        values = map(_format_figure, row["values"], row["intervals"])
        table.add_row(row["data"] + mark, row["metric"], *values, *(figures if paper else []))
    table.add_section()
    over, means = summary["averaged_over"], [_format_percent(column["average"]) for column in columns]
    table.add_row("average", f"of {len(over)}", *means, *(_average_paper(over) if paper else []))
    if any(column["wins"] is not None for column in columns):
        table.add_row("wins", "over the first", *("" if c["wins"] is None else str(c["wins"]) for c in columns))
    if paper:
        table.caption = "Swin-T: EsViT's Table 11, pre-trained on ImageNet-1K, logistic probe"
    return table


def _format_figure(value: float | None, interval: tuple[float, float] | None) -> str:
    """Format a figure in percent with its interval, which stands in a second line if the column is narrow."""
    return _format_percent(value) + ("" if interval is None else f" ({format_bounds(*interval)})")


def _format_percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _average_paper(names: list[str]) -> list[str]:
    """Average the paper's figures over the same datasets, if it has all of them."""
    if not names or any(name not in PAPER for name in names):
        return []
    return [f"{fmean(PAPER[name][i] for name in names):.1f}" for i in (0, 1)]
