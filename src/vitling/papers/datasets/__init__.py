"""Datasets of the three papers: facts about each, and readers for their files as distributed.

`NAME:DIR` is a DATA like any other: `vitling train flowers102:DIR`. Options follow as `?name=value&...`; `?val=train`
adds the val split to train. Importing this package imports nothing heavy.
"""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitling.errors import UserError
from vitling.papers.datasets.entry import ENTRIES, Entry

if TYPE_CHECKING:
    from vitling.data.sources.source import Source


def get_entry(name: str) -> Entry:
    if name not in ENTRIES:
        near = difflib.get_close_matches(name, ENTRIES, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f'No dataset is called "{name}".{hint} `vitling list datasets` lists them.')
    return ENTRIES[name]


def find_copy(name: str, root: Path) -> str | None:
    """Return the DATA of a distributed copy in root/NAME, or in root under the name of its archive."""
    from vitling.papers.datasets.files import find_homes

    return f"{name}:{root}" if next(find_homes(root, get_entry(name), itself=False), None) else None


def register_readers() -> None:
    """Let `vitling.data`, which must not import this package, open these datasets as `NAME:DIR`."""
    from vitling.data.sources.schemes import register_reader  # its package imports numpy

    for name, entry in ENTRIES.items():
        register_reader(name, partial(_read_entry, entry))
    register_reader("frames", _read_frames)


def _read_entry(entry: Entry, rest: str) -> Source:
    from vitling.papers.datasets.reading import read_entry

    return read_entry(entry, rest)


def _read_frames(rest: str) -> Source:
    from vitling.papers.datasets.frames import read_frames

    return read_frames(rest)
