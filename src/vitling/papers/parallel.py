"""Helper processes that work on the same study: while one compiles or decodes, another trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vitling.console import Log
from vitling.errors import ABORTED, DONE

GRACE = 60.0  # seconds that helpers have to save their runs
NORMAL_EXITS = (DONE, ABORTED)  # ABORTED: some runs failed, as the results tell


@contextmanager
def run_helpers(command: Sequence[str], count: int, folder: Path, log: Log) -> Iterator[None]:
    """Run `count` helpers alongside the block, with their logs in `folder`.

    They end when nothing is left to do, or, if the block raises, when they have saved their runs.
    """
    helpers: list[_Helper] = []
    try:
        for i in range(count):
            helpers.append(_Helper(command, folder / f"process{i + 2}-of-{os.getpid()}.log"))
        if helpers:
            log.info(f"{count} more at once; their logs are {', '.join(str(helper.log) for helper in helpers)}.")
        yield
        if any(helper.process.poll() is None for helper in helpers):
            log.info("Waiting for the other processes.")
        for helper in helpers:
            if (code := helper.process.wait()) not in NORMAL_EXITS:
                log.warning(f"A process ended with {code}: {helper.read_last_line() or 'no output'}")
    finally:
        _end_helpers(helpers)


def make_helper_command(name: str, **settings: object) -> list[str]:
    """Return the command of a process that works on the same study and ends with this one."""
    return [sys.executable, "-m", "vitling.papers.helper", name, json.dumps(settings)]


class _Helper:
    """A process with a pipe from this one; when the pipe closes, for whatever reason, it saves its run and ends."""

    def __init__(self, command: Sequence[str], log: Path):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)

    def read_last_line(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _end_helpers(helpers: list[_Helper]) -> None:
    running = [helper.process for helper in helpers if helper.process.poll() is None]
    for process in running:
        process.terminate()
    until = time.monotonic() + GRACE
    try:
        while time.monotonic() < until and any(process.poll() is None for process in running):
            time.sleep(0.05)
    finally:
        for helper in helpers:
            helper.process.kill()
            helper.process.wait()
            if helper.process.stdin is not None:
                helper.process.stdin.close()
