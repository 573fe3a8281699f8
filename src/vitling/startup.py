"""The start of a command, which --minutes counts from: importing torch takes seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

_began: float | None = None  # on the monotonic clock; None in Python programs, whose start says nothing about a run


def mark_start() -> None:
    """Remember when this process was started; called by the command line."""
    global _began
    _began = time.monotonic() - _measure_age()


def take_start() -> float:
    """Return the start of the command for its first run, and the present for all later ones."""
    global _began
    began, _began = _began, None
    return time.monotonic() if began is None else began


def _measure_age() -> float:
    """Return the seconds since this process was started; 0 where there is no /proc."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, up - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
