"""The picture of `vitling demo`: the accuracy of its three runs with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitling.files import atomic_write

Bar = tuple[str, float, tuple[float, float]]  # name, accuracy and its interval, as fractions


def draw_demo(bars: Sequence[Bar], title: str, out: Path) -> None:
    """Draw a horizontal bar for each run and write the picture as PNG."""
    from matplotlib.figure import Figure

    figure = Figure((7.5, 2.6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for i, (_, accuracy, (low, high)) in enumerate(bars):
        axes.barh(i, 100 * accuracy, 0.6, color=f"C{i}")
        axes.plot([100 * low, 100 * high], [i, i], color="black", lw=1.5)
        axes.text(1, i, f"{accuracy:.1%}", va="center", color="white", fontsize=10)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars], fontsize=9)
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="test accuracy, %; line: 95 % interval")
    axes.set_title(title, fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    with atomic_write(out) as file:
        figure.savefig(file, format="png")
