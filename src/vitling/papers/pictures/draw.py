"""The picture of a study, saved next to its results. matplotlib is imported only when one is drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitling.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100


def draw(results: dict[str, Any], path: Path, runs: Path | None = None) -> bool:
    """Draw the picture of a study to `path`; return whether it did.

    Heat maps and charts need the results alone. t-SNE needs the coordinates in every run's folder in `runs`; if one is
    missing, the picture stays as it is.
    """
    from vitling.papers.pictures import charts, heatmap, tsne

    figure: Figure | None = None
    if any("value" in row for row in results["rows"]):
        if results.get("picture") == "heatmap":
            figure = heatmap.make_figure(results)
        if results.get("picture") in charts.PANELS:
            figure = charts.make_figure(results)
        if results.get("picture") == "tsne" and runs is not None:
            figure = tsne.make_figure(results, runs)
    if figure is not None:
        _save(figure, path)
    return figure is not None


def _save(figure: Figure, path: Path) -> None:
    """Save with 64 colours, which are enough and keep the repository small."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    image = Image.open(buffer).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    with atomic_write(path) as file:
        image.save(file, format="png", optimize=True)
