"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def make_table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table; a | in a cell is escaped."""
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
