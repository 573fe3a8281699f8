"""Helper processes, which prepare what a run will need and end with it, whatever ends it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from vitling.data.host import count_cores, get_free_memory
from vitling.training.signals import call_on_parent_exit

_MIN_HOST_BYTES = 8 * 2**30  # for one process with torch, and the compiler's workers
_PIPE_BYTES = 2**16  # of a pipe, which may still hold an earlier message
_KILL_SECONDS = 5.0  # to clean up after SIGTERM
_LAST_OUTPUT = 4000  # characters


def can_start_helper(min_cores: int, min_bytes: int = _MIN_HOST_BYTES) -> bool:
    """Return whether the machine can spare processes that compile. With few cores they would slow down the run."""
    return count_cores() >= min_cores and get_free_memory() >= min_bytes


class Helper:
    """A process that runs a hidden command of vitling. It ends when its stdin closes, and at the end of the block."""

    def __init__(self, verb: str, *words: str):
        """Start the process; raise OSError if that fails."""
        command = [sys.executable, "-P", "-m", "vitling", verb, *words]
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, closed by stop
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=self.output, stderr=self.output, start_new_session=True
            )
        except OSError:
            self.output.close()
            raise

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def send(self, content: bytes) -> None:
        """Write to the process's stdin, which stays open; where possible, without waiting until the process reads."""
        assert self.process.stdin is not None
        with suppress(OSError, AttributeError):  # the system's limit; a system other than Linux
            fcntl.fcntl(self.process.stdin, fcntl.F_SETPIPE_SZ, len(content) + _PIPE_BYTES)
        with suppress(BrokenPipeError):  # it has failed, as its exit code will tell
            self.process.stdin.write(content)
            self.process.stdin.flush()

    def ends_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=max(0.0, seconds))
        return self.process.poll() is not None

    def find_problem(self) -> str | None:
        """Return why the process has not succeeded, with the end of its output; None if it has."""
        status = self.process.poll()
        if status == 0:
            return None
        self.output.seek(0)
        text = self.output.read().strip()[-_LAST_OUTPUT:]
        return f"{'it took too long' if status is None else f'exit code {status}'}. {text}".strip()

    def stop(self) -> None:
        """End the process and its compiler's processes, first with SIGTERM so that they can clean up."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal_number)
                self.ends_within(_KILL_SECONDS)
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        self.output.close()


def become_helper() -> None:
    """Take little priority, and end with the process that started this one. Call it after reading from stdin."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    exit_with_parent()
    with suppress(OSError):
        os.nice(10)


def exit_with_parent() -> None:
    """End this process and those it started when its parent ends."""

    def stop() -> None:
        os.killpg(0, signal.SIGTERM)
        time.sleep(_KILL_SECONDS)
        os.killpg(0, signal.SIGKILL)

    call_on_parent_exit(stop)
