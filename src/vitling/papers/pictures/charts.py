"""Simple charts of studies: curves over epochs, accuracy against size and speed, bars by dataset.

They show the first seed only; the tables have the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vitling.metric_names import METRIC_NAMES
from vitling.papers.pictures import add_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = dict[str, dict[str, Any]]  # of the first seed, by run
Papers = dict[str, float | None]


def make_figure(results: dict[str, Any]) -> Figure | None:
    """Draw the panels of a study; return None if no run has data for any."""
    from matplotlib.figure import Figure

    seed = min(row["seed"] for row in results["rows"] if "value" in row)
    rows: Rows = {row["run"]: row for row in results["rows"] if "value" in row and row["seed"] == seed}
    panels = [draw for draw, key in PANELS[results["picture"]] if any(key(row) for row in rows.values())]
    if not panels:
        return None
    made = Figure((1.0 + 4.5 * len(panels), 4.4))
    for i, draw in enumerate(panels):
        axes = made.add_subplot(1, len(panels), i + 1)
        draw(axes, rows, {run["run"]: run["paper"] for run in results["runs"]})
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    add_title(made, f"{results['study']}: {results['title']}, seed {seed}. {results['source']}")
    made.tight_layout(rect=(0, 0, 1, 0.92))
    return made


def _get_curve(row: dict[str, Any]) -> dict[str, list[float]] | None:
    return row.get("curves", {}).get("knn")


def _draw_curves(axes: Axes, rows: Rows, papers: Papers) -> None:
    for run, row in rows.items():
        if curve := _get_curve(row):
            (line,) = axes.plot(curve["epoch"], curve["value"], marker=".", label=run)
            if (paper := papers.get(run)) is not None:
                axes.plot(curve["epoch"][-1:], [paper], "x", color=line.get_color())
    axes.set(xlabel="epoch", ylabel="k-NN on held-out training images, %")
    axes.plot([], [], "kx", label="paper, at the end")
    axes.legend(fontsize=8, frameon=False)


def _make_scatter(key: str, label: str, scale: float) -> Callable[[Axes, Rows, Papers], None]:
    def draw(axes: Axes, rows: Rows, papers: Papers) -> None:
        for run, row in rows.items():
            if key not in row:
                continue
            x, paper = row[key] / scale, papers.get(run)
            axes.plot([x], [row["value"]], "o", color="C0")
            axes.annotate(run, (x, row["value"]), (4, 4), textcoords="offset points", fontsize=7)
            if paper is not None:
                axes.plot([x], [paper], "x", color="C1")
        axes.plot([], [], "o", color="C0", label="ours")
        axes.plot([], [], "x", color="C1", label="paper's accuracy")
        axes.set(xlabel=label, ylabel=f"{METRIC_NAMES['top1'].display}, %")
        axes.legend(fontsize=8, frameon=False)

    return draw


def _draw_bars(axes: Axes, rows: Rows, papers: Papers) -> None:
    several = {run: row["each"] for run, row in rows.items() if "each" in row}
    names = list(dict.fromkeys(name for each in several.values() for name in each))
    height = 0.8 / len(several)
    for i, (run, each) in enumerate(several.items()):
        places = [names.index(name) + (i - (len(several) - 1) / 2) * height for name in each]
        axes.barh(places, list(each.values()), height, label=run)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="%")
    axes.legend(fontsize=8, frameon=False, ncols=len(several), loc="lower left", bbox_to_anchor=(0, 1))


PANELS: dict[str, list[tuple[Callable[[Axes, Rows, Papers], None], Callable[[dict[str, Any]], Any]]]] = {
    "curves": [(_draw_curves, _get_curve)],
    "scatter": [
        (_make_scatter("images_per_second", "images per second", 1), lambda row: row.get("images_per_second")),
        (_make_scatter("parameters", "parameters, millions", 1e6), lambda row: row.get("parameters")),
    ],
    "bars": [(_draw_bars, lambda row: row.get("each"))],
}
