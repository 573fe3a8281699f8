"""The tables of docs/datasets.md, from the entries: `make datasets`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vitling.papers.datasets import ENTRIES
from vitling.papers.datasets.entry import Entry

MARK = "<!-- From here on made by `make datasets`. -->\n"


def page() -> str:
    """What follows the mark."""
    numbers = [
        (f"`{e.name}`", e.title, _number(e.classes), *map(_number, (e.train, e.val, e.test)), _metric(e), _tables(e))
        for e in ENTRIES.values()
    ]
    origins = [(f"`{e.name}`", e.licence, e.where, e.cite) for e in ENTRIES.values()]
    layouts = [(f"`{e.name}`", _either(e.layout.marks), _either(e.layout.folders)) for e in ENTRIES.values()]
    notes = [f"- `{e.name}`: {note}" for e in ENTRIES.values() for note in e.notes]
    return "\n".join(
        [
            *("## Numbers", ""),
            *_table(("name", "data set", "classes", "train", "val", "test", "metric", "tables"), numbers),
            *("", "## Licences and origins", ""),
            *_table(("name", "licence, as far as known", "from", "cite"), origins),
            *("", "## What shows where a copy is", ""),
            *_table(("name", "one of these is in its folder", "the folder may also be called"), layouts),
            *("", "## Notes", "", *notes, ""),
        ]
    )


def write(path: Path) -> None:
    before = path.read_text(encoding="utf-8").partition(MARK)[0]
    path.write_text(f"{before}{MARK}\n{page()}", encoding="utf-8")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]


def _number(n: int) -> str:
    return f"{n:,}" if n else ""


def _metric(entry: Entry) -> str:
    return entry.metric if entry.test else ""


def _tables(entry: Entry) -> str:
    return ", ".join(entry.tables)


def _either(names: Sequence[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
