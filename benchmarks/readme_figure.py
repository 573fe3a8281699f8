"""Draw the chart of README.md from results/: Flowers-102 from scratch and after IDMM, next to the paper.

python benchmarks/readme_figure.py results docs/pictures
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitling.loading import read_json

ROWS = (  # label, file, run without its start, epochs of fine-tuning
    ("PVTv2-B0, 800 epochs", "idmm-t3-released", "pvtv2-b0-flowers102", 800),
    ("PVTv2-B0, 200 epochs", "idmm-200-released", "pvtv2-b0-flowers102", 200),
    ("DeiT-Tiny, 800 epochs", "idmm-t3-released", "deit-tiny-flowers102", 800),
    ("DeiT-Tiny, 200 epochs", "idmm-200", "deit-tiny-flowers102", 200),
)


@dataclass(frozen=True)
class Theme:
    """Colours of the chart for pages with a light or a dark background."""

    text: str
    muted: str
    grid: str
    random: str
    idmm: str


THEMES = {
    "light": Theme(text="#1f2328", muted="#59636e", grid="#d9dee3", random="#8a63d2", idmm="#e36209"),
    "dark": Theme(text="#f0f6fc", muted="#9198a1", grid="#30363d", random="#b392f0", idmm="#ffab70"),
}


@dataclass(frozen=True)
class Figures:
    """Top-1 of one run in percent, one value per seed, and the paper's."""

    values: tuple[float, ...]
    paper: float

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def read_figures(folder: Path, file: str, run: str) -> Figures:
    results = read_json(folder / f"{file}.json")
    values = tuple(row["value"] for row in results["rows"] if row["run"] == run and "value" in row)
    return Figures(values, next(about["paper"] for about in results["runs"] if about["run"] == run))


def draw(folder: Path, theme: Theme) -> Figure:
    figure = Figure((8.4, 3.5))
    axes = figure.add_axes((0.205, 0.17, 0.765, 0.62))
    for y, (label, file, run, epochs) in enumerate(reversed(ROWS)):
        random, idmm = (read_figures(folder, file, f"{run}-{start}-{epochs}") for start in ("random", "idmm"))
        axes.plot([random.mean, idmm.mean], [y, y], color=theme.grid, linewidth=5, solid_capstyle="round", zorder=1)
        _draw_start(axes, y, random, theme.random, theme, left=True)
        _draw_start(axes, y, idmm, theme.idmm, theme, left=False)
        seeds = f"{len(idmm.values)} seeds" if len(idmm.values) > 1 else "one seed"
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(-0.02, y + 0.14, label, color=theme.text, fontsize=10, **place)
        axes.text(-0.02, y - 0.2, seeds, color=theme.muted, fontsize=8.5, **place)
    _style(axes, theme)
    title = "Flowers-102 from 2,040 training images and no others"
    figure.text(0.012, 0.925, title, color=theme.text, weight="bold", fontsize=12)
    _add_legend(figure, theme)
    return figure


def _draw_start(axes: Axes, y: float, found: Figures, colour: str, theme: Theme, left: bool) -> None:
    """Draw our mean with its standard deviation and value, and the paper's figure as a ring."""
    if found.std is not None:
        axes.errorbar(found.mean, y, xerr=found.std, color=colour, capsize=6.5, capthick=1.4, linewidth=1.4, zorder=3)
    axes.plot(found.mean, y, "o", color=colour, markersize=8, zorder=4)
    axes.plot(found.paper, y, "o", markersize=12, markerfacecolor="none", markeredgecolor=theme.muted, zorder=5)
    std = "" if found.std is None else f" ± {found.std:.1f}"
    ends = (found.mean, found.paper)
    x, side = (min(ends) - 1.1, "right") if left else (max(ends) + 1.1, "left")
    axes.text(x, y + 0.14, f"{found.mean:.1f}{std}", ha=side, va="center", color=colour, weight="bold", fontsize=10)
    axes.text(x, y - 0.2, f"{found.paper:.1f}", ha=side, va="center", color=theme.muted, fontsize=8.5)


def _style(axes: Axes, theme: Theme) -> None:
    axes.set(xlim=(44, 102), ylim=(-0.55, len(ROWS) - 0.45), yticks=[], xticks=range(50, 101, 10))
    axes.set_xlabel(
        "test top-1 of the last epoch, %; bars: standard deviation over seeds", color=theme.muted, fontsize=9
    )
    axes.tick_params(axis="x", colors=theme.muted, length=3, labelsize=9)
    for name, spine in axes.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(theme.grid)


def _add_legend(figure: Figure, theme: Theme) -> None:
    def marker(colour: str, size: float, face: str, label: str) -> Line2D:
        return Line2D(
            [], [], marker="o", linestyle="", color=colour, markersize=size, markerfacecolor=face, label=label
        )

    handles = [
        marker(theme.random, 8, theme.random, "from scratch"),
        marker(theme.idmm, 8, theme.idmm, "after IDMM on the same images"),
        marker(theme.muted, 11, "none", "the paper (grey)"),
    ]
    place = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.915), "ncols": 3, "columnspacing": 1.6}
    figure.legend(handles=handles, frameon=False, labelcolor=theme.muted, fontsize=9.5, handletextpad=0.3, **place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", default="svg", choices=("svg", "png"))
    options = parser.parse_args()
    matplotlib.rcParams["svg.hashsalt"] = "vitling"  # the same file every time
    for name, theme in THEMES.items():
        path = options.out / f"flowers102-{name}.{options.format}"
        metadata = {"Date": None} if options.format == "svg" else {}
        draw(options.results, theme).savefig(path, transparent=True, dpi=160, metadata=metadata)
        print(f"Saved to {path}")


if __name__ == "__main__":
    main()
