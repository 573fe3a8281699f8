"""Registry of readers for DATA of the form SCHEME:REST, for packages above this one (the papers' datasets)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitling.data.sources.source import Source

READERS: dict[str, Callable[[str], Source]] = {}


def register_reader(scheme: str, read: Callable[[str], Source]) -> None:
    """Register `read`, which gets the text after the colon, for DATA that starts with `SCHEME:`."""
    READERS[scheme] = read
