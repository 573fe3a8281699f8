"""HTML for Jupyter: a live view of a training, and curves as SVG. Outside of a notebook nothing here does anything."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

INTERVAL = 1.0  # seconds between updates of a live view
WIDTH, HEIGHT = 480, 120  # px of a curve
CURVES = ("loss", "val/top1", "val/mean_average_precision", "val/mean_iou", "val/box_ap", "knn/top1")
Points = Sequence[tuple[float, float]]


class Handle(Protocol):
    """A place in a notebook whose content can be replaced, as IPython's DisplayHandle."""

    def update(self, content: Any) -> None: ...


class Markup:
    """HTML that notebooks render."""

    def __init__(self, html: str):
        self.html = html

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "<progress of a training>"


def open_handle() -> Handle | None:
    """Return a new place in the notebook that this code runs in; None elsewhere, IPython in a terminal included."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display(Markup(""), display_id=True)


class LiveView:
    """Progress bar, newest metrics and curves of a training, updated at most once in INTERVAL."""

    def __init__(self, handle: Handle, steps: int):
        self.handle, self.steps = handle, steps
        self.text, self.curves = "", {name: list[tuple[float, float]]() for name in CURVES}
        self.updated = -INTERVAL

    def add(self, line: Mapping[str, Any], text: str) -> None:
        """Take the metrics of an epoch."""
        self.text = text
        for name, points in self.curves.items():
            if isinstance(value := line.get(name), int | float):
                points.append((line["epoch"], value))

    def show(self, done: int, note: str, last: bool = False) -> None:
        """Show how many steps are done, unless this was shown a moment ago."""
        now = time.monotonic()
        if last or now - self.updated >= INTERVAL:
            self.updated = now
            bar = f'<progress value="{done}" max="{self.steps}" style="width:{WIDTH}px"></progress>'
            self.handle.update(Markup(f"{bar} {escape(note)}<br>{escape(self.text)}<br>{draw_curves(self.curves)}"))


def draw_curves(curves: Mapping[str, Points]) -> str:
    """Draw each metric over the epochs as SVG, in the text's colour."""
    return "".join(_draw(name, points) for name, points in curves.items() if len(points) > 1)


def _draw(name: str, points: Points) -> str:
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points))
    places = " ".join(
        f"{WIDTH * (x - left) / ((right - left) or 1):.1f},{HEIGHT * (high - y) / ((high - low) or 1):.1f}"
        for x, y in points
    )
    text = f"{name}: {points[-1][1]:.4g} at epoch {points[-1][0]:g}, {low:.4g} to {high:.4g}"
    line = f'<polyline points="{places}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    svg = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(text)}">{line}</svg>'
    return f'<figure style="margin:0.5em 0">{svg}<figcaption>{escape(text)}</figcaption></figure>'
