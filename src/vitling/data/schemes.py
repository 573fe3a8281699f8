"""Readers for DATA of the form SCHEME:REST that other packages provide, such as the data sets of the papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitling.data.sources.source import Source

READERS: dict[str, Callable[[str], Source]] = {}


def register_reader(scheme: str, read: Callable[[str], Source]) -> None:
    """Let `read` open every DATA that begins with SCHEME:."""
    READERS[scheme] = read
