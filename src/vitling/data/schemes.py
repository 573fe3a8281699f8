"""Readers for DATA of the form SCHEME:REST that other packages provide, such as the data sets of the papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitling.data.sources.parts import Parts

READERS: dict[str, Callable[[str], Parts]] = {}


def register_reader(scheme: str, read: Callable[[str], Parts]) -> None:
    """Let `read` open every DATA that begins with SCHEME:."""
    READERS[scheme] = read
