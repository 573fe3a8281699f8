"""The data sets of the three papers: what is known of each, and readers of their files as distributed.

`NAME:DIR` is a DATA like any other: `vitling train flowers102:DIR`. Options follow with `?name=value&...`; `?val=train`
makes a val split a part of train. Importing this package imports nothing heavy.
"""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitling.data.schemes import register_reader
from vitling.errors import UserError
from vitling.papers.datasets.entry import Entry
from vitling.papers.datasets.large import LARGE
from vitling.papers.datasets.small import SMALL

if TYPE_CHECKING:
    from vitling.data.sources.source import Source

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*SMALL, *LARGE)}


def get_entry(name: str) -> Entry:
    if name not in ENTRIES:
        near = difflib.get_close_matches(name, ENTRIES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f'No data set is called "{name}".{hint} `vitling list datasets` shows them.')
    return ENTRIES[name]


def find(name: str, root: Path) -> str | None:
    """A copy as distributed, as the DATA that names it: in root/NAME, or in root under the name of its archive."""
    from vitling.papers.datasets.files import homes

    return f"{name}:{root}" if next(homes(root, get_entry(name), itself=False), None) else None


def read(name: str, rest: str, entry: Entry | None = None) -> Source:
    """The splits of `NAME:rest`. `entry` has other counts than the full data set, where a part of it is meant."""
    from vitling.papers.datasets.reading import read_entry

    return read_entry(entry or get_entry(name), rest)


def register_readers() -> None:
    """Let `vitling.data`, which must not import this package, open these data sets as `NAME:DIR`."""
    for name in ENTRIES:
        register_reader(name, partial(read, name))
