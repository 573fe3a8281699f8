"""More processes that work at the same study: while one compiles or decodes, another trains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from vitling.console import Log

SAVING = 60.0  # seconds that a process has to save its run
USUAL = (0, 3)  # exit codes: done; some runs failed, which the results say


@contextmanager
def helped(command: Sequence[str], others: int, folder: Path, log: Log) -> Iterator[None]:
    """`others` processes begin with the block and end after it: when they find nothing more to do, or, where the block
    ends with an error, when they have saved what they are at. What they say is in `folder`."""
    with ExitStack() as opened:
        helpers = [opened.enter_context(_Helper(command, folder / f"process{i + 2}.log")) for i in range(others)]
        if helpers:
            log.say(f"{others} more at once; what they say is in {', '.join(str(h.said) for h in helpers)}.")
        yield
        if any(helper.process.poll() is None for helper in helpers):
            log.say("Waiting for the other processes.")
        for helper in helpers:
            if (code := helper.process.wait()) not in USUAL:
                log.warn(f"A process ended with {code}: {helper.last_words() or 'it said nothing'}")


class _Helper:
    def __init__(self, command: Sequence[str], said: Path):
        said.parent.mkdir(parents=True, exist_ok=True)
        self.said = said
        with said.open("w") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def __enter__(self) -> _Helper:
        return self

    def __exit__(self, *problem: object) -> None:
        """Nothing is left to do where all went well."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(SAVING)
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        lines = self.said.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def same_command(name: str, **settings: object) -> list[str]:
    """`vitling reproduce`, for one process."""
    words = [sys.executable, "-m", "vitling", "reproduce", name]
    for flag, value in settings.items():
        if value is not None and value != ():
            words += [f"--{flag.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words
