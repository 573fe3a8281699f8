"""Helper processes, which prepare what a run will need and end with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO

from vitling.data.host import count_cores, get_free_memory
from vitling.training.signals import call_on_parent_exit

_MIN_HOST_BYTES = 8 * 2**30  # for torch and the compiler's processes
_KILL_SECONDS = 5.0  # to clean up after SIGTERM


def can_start_helper(min_cores: int) -> bool:
    """Return whether the machine can spare a process that compiles. With few cores it would slow down the run."""
    return hasattr(os, "killpg") and count_cores() >= min_cores and get_free_memory() >= _MIN_HOST_BYTES


def start_helper(verb: str, *words: str, output: IO[str]) -> subprocess.Popen[bytes]:
    """Start a hidden command of vitling. It ends when its stdin closes."""
    command = [sys.executable, "-P", "-m", "vitling", verb, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)


def stop_helper(process: subprocess.Popen[bytes]) -> None:
    """End the process and its compiler's processes, first with SIGTERM so that they can clean up."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_KILL_SECONDS)
            return


def become_helper() -> None:
    """Take little priority, and end with the process that started this one. Read stdin before."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    exit_with_parent()
    with suppress(OSError, AttributeError):
        os.nice(10)


def exit_with_parent() -> None:
    """End this process and those it started when its parent ends."""

    def stop() -> None:
        os.killpg(0, signal.SIGTERM)
        time.sleep(_KILL_SECONDS)
        os.killpg(0, signal.SIGKILL)

    call_on_parent_exit(stop)
