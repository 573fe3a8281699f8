"""Terminal output: log lines and progress bars."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column, Table

from vitling.errors import UserError
from vitling.files import append_line
from vitling.formatting import make_safe

_TEXT_WIDTH = 8  # characters; minimum width of a text column in a narrow terminal
LINE_INTERVAL = 10.0  # seconds between progress lines when the output is not a terminal

_brief = ContextVar("brief", default=False)


@contextmanager
def brief_output() -> Iterator[None]:
    """Let logs that are created in the block show only warnings and progress; log.txt gets everything."""
    token = _brief.set(True)
    try:
        yield
    finally:
        _brief.reset(token)


def is_main_process() -> bool:
    """Return whether this process has rank 0, the one that prints and writes files.

    A RANK that is no number counts as 0; `init_processes` refuses it where several processes train.
    """
    with suppress(ValueError):
        return int(os.environ.get("RANK") or "0") == 0
    return True


class Console(rich.console.Console):
    """A rich console for text that holds names from files: no markup, and no control characters in the text."""

    def __init__(self, **options: Any):
        super().__init__(**{"markup": False} | options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_plain = segment.control is None
            yield Segment(make_safe(segment.text), segment.style) if is_plain else segment


def make_table(texts: Iterable[str | Column], numbers: Iterable[str], caption: str | None = None) -> Table:
    """Make a table with columns of text and, to their right, of numbers, which are aligned and never wrapped."""
    right = (Column(name, justify="right", no_wrap=True) for name in numbers)
    left = (Column(text, min_width=_TEXT_WIDTH) if isinstance(text, str) else text for text in texts)
    return Table(*left, *right, caption=caption)


def echo(text: object = "", file: TextIO | None = None) -> None:
    """Print a line, with control characters of names escaped."""
    print(make_safe(str(text)), file=file)


class ProgressCallback(Protocol):
    def __call__(self, done: int, total: int | None = ...) -> None: ...


class Log:
    """Logger to the terminal and to log.txt. A silent one, for the other ranks, discards everything."""

    def __init__(self, path: Path | None = None, silent: bool = False):
        self.path, self.silent, self.brief = path, silent, _brief.get()
        self.console = Console(file=sys.stderr, highlight=False, quiet=silent, soft_wrap=True)

    def info(self, line: str) -> None:
        if not self.brief:
            self.console.print(line)
        self.debug(line)

    def warning(self, line: str) -> None:
        line = f"Warning: {line}".replace("\n", "\\n")  # names may contain line breaks
        self.console.print(line, style="yellow")
        self.debug(line)

    def debug(self, line: str) -> None:
        """Write to log.txt only. A line that cannot be written is lost and ends no run."""
        if self.path is None or self.silent:
            return
        stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError, UserError):  # such as a full disk, which the files that matter will report
            append_line(self.path, f"{stamp} {line}")

    @contextmanager
    def progress(self, title: str, total: int | None = None) -> Iterator[ProgressCallback]:
        """Show a progress bar; yield a function that takes the number done and, if not known before, the total."""
        if self.silent:
            yield lambda done, total=None: None
        elif self.console.is_terminal:
            columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            with Progress(*columns, console=self.console, transient=True) as progress:
                task = progress.add_task(title, total=total)
                yield lambda done, total=total: progress.update(task, completed=done, total=total)
        else:
            yield self._print_progress(title, total)

    def _print_progress(self, title: str, known_total: int | None) -> ProgressCallback:
        last = time.monotonic()

        def show(done: int, total: int | None = known_total) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_INTERVAL:
                last = time.monotonic()
                self.console.print(f"{title} {done}/{total or '?'}")

        return show
