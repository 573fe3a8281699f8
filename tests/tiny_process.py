"""A command of vitling in a process that may have to die: python -m tests.tiny_process COMMAND ...

It knows the study of `fault_scenarios`. In a worker (a helper of `reproduce --at-once`, or rank 1 of torchrun), the
variable DIE_AT is the number of the moment at which it is killed: a file operation, or for rank 1 a training step.
Without it, the number of moments is written to the file COUNT.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fault_scenarios import make_study, make_up
from tests.faults import FileOperations
from vitling import cli
from vitling.papers import helper, parallel, reproduce
from vitling.papers.datasets import register_readers
from vitling.training.trainer import Trainer


def reach(moment: int) -> None:
    if os.environ.get("DIE_AT") == str(moment):
        os.kill(os.getpid(), signal.SIGKILL)
    if path := os.environ.get("COUNT"):
        Path(path).write_text(str(moment + 1))


def make_helper_command(name: str, **settings: object) -> list[str]:
    words = parallel.make_helper_command(name, **settings)
    return [*words[:2], "tests.tiny_process", "helper", *words[3:]]


@contextmanager
def wait_for_helpers(command: Sequence[str], count: int, folder: Path, log: Any) -> Iterator[None]:
    """Leave the first run to the helper: it starts later, when this process could have done all of them."""
    with parallel.run_helpers(command, count, folder, log):
        output = next(folder.glob("process2-*"))
        while "Run 1 of" not in output.read_text() and not _has_dead_child():
            time.sleep(0.05)
        yield


def _has_dead_child() -> bool:
    return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def run_helper() -> int:
    register_readers()
    sys.argv = sys.argv[1:]
    with FileOperations(Path.cwd(), on_moment=reach).interpose():
        helper.main()
    return 0


def count_steps(patch: pytest.MonkeyPatch) -> None:
    step, numbers = Trainer.step, itertools.count()

    def take_step(self: Trainer, loaded: Any) -> Any:
        reach(next(numbers))
        return step(self, loaded)

    patch.setattr(Trainer, "step", take_step)


def main() -> int:
    with pytest.MonkeyPatch.context() as patch:
        make_up(patch)
        if sys.argv[1] == "helper":
            patch.setattr(helper, "find_study", make_study)
            return run_helper()
        if os.environ.get("RANK") == "1":
            count_steps(patch)
        patch.setattr(reproduce, "make_helper_command", make_helper_command)
        patch.setattr(reproduce, "run_helpers", wait_for_helpers)
        return cli.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
