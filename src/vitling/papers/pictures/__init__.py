"""Pictures of studies: heat maps, charts and t-SNE, from their results. Importing it imports no matplotlib."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_title(figure: Figure, text: str) -> int:
    """Write a title at the top, wrapped to the figure's width; return the number of its lines."""
    lines = textwrap.wrap(text, int(13 * figure.get_figwidth()))
    figure.text(0.01, 0.985, "\n".join(lines), fontsize=9, va="top")
    return len(lines)
