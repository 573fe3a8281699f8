"""What a person reads while a command works: lines, and a bar for anything over two seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_INTERVAL = 10.0  # seconds between lines where there is no terminal


def is_main_process() -> bool:
    """Return whether this process, of those that torchrun started, does the logging and writing."""
    return int(os.environ.get("RANK") or "0") == 0


class ProgressCallback(Protocol):
    def __call__(self, done: int, total: int | None = ...) -> None: ...


class Log:
    """Lines to the terminal and to log.txt. A silent one (another rank) swallows them."""

    def __init__(self, path: Path | None = None, silent: bool = False):
        self.path, self.silent = path, silent
        self.console = Console(file=sys.stderr, highlight=False, quiet=silent, soft_wrap=True)

    def info(self, line: str) -> None:
        self.console.print(line, markup=False)
        self.debug(line)

    def warning(self, line: str) -> None:
        self.console.print(f"Warning: {line}", style="yellow", markup=False)
        self.debug(f"Warning: {line}")

    def debug(self, line: str) -> None:
        """Into log.txt only."""
        if self.path is None or self.silent:
            return
        stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{stamp} {line}\n")

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Iterator[ProgressCallback]:
        """Gives a function to call with the number done so far, and with the total if it was not known before."""
        if self.silent:
            yield lambda done, total=None: None
        elif self.console.is_terminal:
            columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=self.console, transient=True) as progress:
                task = progress.add_task(what, total=total)
                yield lambda done, total=total: progress.update(task, completed=done, total=total)
        else:
            yield self._plain_progress(what, total)

    def _plain_progress(self, what: str, known: int | None) -> ProgressCallback:
        last = time.monotonic()

        def show(done: int, total: int | None = known) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_INTERVAL:
                last = time.monotonic()
                self.console.print(f"{what} {done}/{total or '?'}", markup=False)

        return show
