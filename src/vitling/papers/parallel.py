"""More processes that work at the same study: while one compiles or decodes, another trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vitling.console import Log
from vitling.errors import ABORTED, DONE, Interrupted
from vitling.training.signals import call_on_parent_exit

SAVING = 60.0  # seconds that the processes have to save their runs
USUAL = (DONE, ABORTED)  # some runs failed, which the results say


@contextmanager
def run_helpers(command: Sequence[str], others: int, folder: Path, log: Log) -> Iterator[None]:
    """`others` processes begin with the block and end after it: when they find nothing more to do, or, where the block
    ends with an error, when they have saved what they are at. What they say is in `folder`."""
    helpers: list[_Helper] = []
    try:
        for i in range(others):
            helpers.append(_Helper(command, folder / f"process{i + 2}-of-{os.getpid()}.log"))
        if helpers:
            log.info(f"{others} more at once; what they say is in {', '.join(str(h.said) for h in helpers)}.")
        yield
        if any(helper.process.poll() is None for helper in helpers):
            log.info("Waiting for the other processes.")
        for helper in helpers:
            if (code := helper.process.wait()) not in USUAL:
                log.warning(f"A process ended with {code}: {helper.last_words() or 'it said nothing'}")
    finally:
        _end(helpers)


class _Helper:
    """Ends, with everything saved, when this process does, whatever that dies of: the pipe is closed then."""

    def __init__(self, command: Sequence[str], said: Path):
        said.parent.mkdir(parents=True, exist_ok=True)
        self.said = said
        with said.open("w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)

    def last_words(self) -> str:
        lines = self.said.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _end(helpers: list[_Helper]) -> None:
    """Nothing is left to do where all went well."""
    running = [helper.process for helper in helpers if helper.process.poll() is None]
    for process in running:
        process.terminate()
    until = time.monotonic() + SAVING
    try:
        while time.monotonic() < until and any(process.poll() is None for process in running):
            time.sleep(0.05)
    finally:
        for helper in helpers:
            helper.process.kill()
            helper.process.wait()
            if helper.process.stdin is not None:
                helper.process.stdin.close()


def helper_command(name: str, **settings: object) -> list[str]:
    """The command of a process that reproduces the study too, and ends with this one."""
    return [sys.executable, "-m", __name__, name, json.dumps(settings)]


def _end_with_the_parent() -> None:
    call_on_parent_exit(lambda: os.kill(os.getpid(), signal.SIGTERM))


def _main() -> None:
    from vitling.papers.reproduce import reproduce
    from vitling.papers.studies import find_study

    _end_with_the_parent()
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    try:
        outcome = reproduce(find_study(name), **settings | {"only": tuple(settings["only"])})
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    sys.exit(ABORTED if outcome.failed else DONE)


if __name__ == "__main__":
    _main()
