"""Heat map of a study whose runs form a matrix: our values, the paper's in small print, and missing cells."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from vitling.formatting import describe_trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 0.95, 0.42  # inches of a cell
LETTER = 0.075  # inches of a letter of a label
EMPTY_COLOUR = "#eeeeee"


def make_figure(results: dict[str, Any]) -> Figure:
    """Draw the heat map with a title above and the coverage below."""
    from matplotlib.figure import Figure

    rows, columns = (list(dict.fromkeys(cell[side] for cell in results["cells"])) for side in ("row", "column"))
    left = 0.2 + LETTER * max(map(len, rows))
    width = left + WIDTH * len(columns) + 0.2
    unit = results["unit"]
    trial = describe_trial(results.get("trial"), ", ")
    title = _wrap(f"{results['study']}: {results['title']}{trial}. {unit[0].upper()}{unit[1:]}", width)
    foot = _wrap(_describe_coverage(results), width)
    top, bottom = 0.5 + 0.2 * len(title), 0.2 + 0.17 * len(foot)
    height = top + HEIGHT * len(rows) + bottom
    made = Figure((width, height))
    box = (left / width, bottom / height, WIDTH * len(columns) / width, HEIGHT * len(rows) / height)
    axes = made.add_axes(box, xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.set_xticks([i + 0.5 for i in range(len(columns))], columns, fontsize=9)
    axes.set_yticks([i + 0.5 for i in range(len(rows))], rows, fontsize=9)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    _fill_cells(axes, results, rows, columns)
    made.text(0.1 / width, 1 - 0.1 / height, "\n".join(title), fontsize=10, va="top")
    made.text(0.1 / width, 0.08 / height, "\n".join(foot), fontsize=8, va="bottom", color="#444444")
    return made


def _fill_cells(axes: Axes, results: dict[str, Any], rows: list[str], columns: list[str]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    ours, failed = _average_runs(results), {row["run"] for row in results["rows"] if "failed" in row}
    shades = _compute_shades(results, ours)
    for cell in results["cells"]:
        x, y = columns.index(cell["column"]), rows.index(cell["row"])
        run, shade = cell["run"], shades.get(cell["run"])
        colour = EMPTY_COLOUR if shade is None else colormaps["YlGnBu"](0.05 + 0.75 * shade)
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white"))
        ink = "white" if shade is not None and shade > 0.65 else "black"
        text = f"{ours[run]:.1f}" if run in ours else "failed" if run in failed else "not yet"
        paper = cell["paper"]
        size = 10 if run in ours else 8
        axes.text(
            x + 0.5, y + (0.5 if paper is None else 0.34), text, ha="center", va="center", fontsize=size, color=ink
        )
        if paper is not None:
            axes.text(x + 0.5, y + 0.76, f"paper {paper:.1f}", ha="center", va="center", fontsize=6.5, color=ink)
    for side in axes.spines.values():
        side.set_visible(False)


def _average_runs(results: dict[str, Any]) -> dict[str, float]:
    values = defaultdict(list)
    for row in results["rows"]:
        if "value" in row:
            values[row["run"]].append(row["value"])
    return {run: statistics.mean(some) for run, some in values.items()}


def _compute_shades(results: dict[str, Any], ours: dict[str, float]) -> dict[str, float]:
    """Scale the values of each column, a dataset, to shades from 0 to 1.

    Baselines lie far below the other runs and would compress those into one shade, so the scale ignores them.
    """
    bases = {run.get("against") for run in results["runs"]}
    columns = defaultdict(list)
    for cell in results["cells"]:
        if cell["run"] in ours:
            columns[cell["column"]].append(cell["run"])
    shades = {}
    for runs in columns.values():
        counted = [ours[run] for run in runs if run not in bases]
        low, high = min(counted, default=math.inf), max(counted, default=math.inf)
        for run in runs:
            share = (ours[run] - low) / (high - low) if high > low else float(ours[run] >= high)
            shades[run] = min(max(share, 0.0), 1.0)
    return shades


def _describe_coverage(results: dict[str, Any]) -> str:
    measured = {row["run"] for row in results["rows"] if "value" in row}
    shown = sum(cell["run"] in measured for cell in results["cells"])
    seeds = {row["seed"] for row in results["rows"] if "value" in row}
    mean = "one seed" if len(seeds) == 1 else f"means over up to {len(seeds)} seeds"
    return (
        f"{shown} of {len(results['cells'])} cells measured, {mean}. Each column has its own colours, from low to high."
    )


def _wrap(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, int((width - 0.2) / LETTER))
