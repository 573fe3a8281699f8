"""Progress of a run: a bar on a terminal, curves in a notebook, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from vitling.console import LINE_INTERVAL, Log
from vitling.notebook import LiveView, open_handle


class _BarOverText(Progress):
    """Bar with the metrics on a separate line: next to it they would be cut off at 80 columns."""

    text = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.text, no_wrap=False, overflow="fold")


class Display:
    """Live view of epoch, terms, lr, images/s, time spent waiting for data, and time left."""

    def __init__(self, log: Log, steps: int, done: int):
        self.log, self.steps, self.first = log, steps, done
        self.started = self.last_output = time.monotonic()
        self.progress: _BarOverText | None = None
        self.notebook: LiveView | None = None

    def __enter__(self) -> Display:
        if not self.log.silent and (handle := open_handle()):
            self.notebook = LiveView(handle, self.steps)
        elif self.log.console.is_terminal and not self.log.silent:
            done, left = TextColumn("{task.percentage:>3.0f}%"), TextColumn("left")
            columns = (BarColumn(), done, TimeElapsedColumn(), left, TimeRemainingColumn())
            self.progress = _BarOverText(*columns, console=self.log.console, transient=True)
            self.task = self.progress.add_task("", total=self.steps, completed=self.first)
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress:
            self.progress.stop()

    def change_length(self, steps: int) -> None:
        self.steps = steps
        if self.notebook:
            self.notebook.steps = steps
        elif self.progress:
            self.progress.update(self.task, total=steps)

    def step(self, done: int) -> None:
        """Advance the bar. Without a terminal, print a line if nothing was printed for a while: epochs can be long."""
        if self.notebook:
            self.notebook.show(done, f"left {self._time_left(done)}")
        elif self.progress:
            self.progress.update(self.task, completed=done)
        elif self._is_time():
            self._print(f"step {done} of {self.steps}", done)

    def metrics(self, done: int, text: str, last: bool, line: Mapping[str, Any] | None = None) -> None:
        """Show the metrics of an epoch. log.txt gets all of them. `line`: their entry in metrics.jsonl, for curves.

        Without a terminal, at most one line is printed in LINE_INTERVAL, and one at the end of the run.
        """
        self.log.debug(text)
        if self.notebook:
            self.notebook.add(line or {}, text)
            self.notebook.show(done, f"left {self._time_left(done)}", last)
        elif self.progress:
            self.progress.text = text
            self.progress.update(self.task, completed=done)
        elif (last or self._is_time()) and not self.log.brief:
            self._print(text, done)

    def _is_time(self) -> bool:
        return time.monotonic() - self.last_output >= LINE_INTERVAL

    def _print(self, text: str, done: int) -> None:
        self.last_output = time.monotonic()
        self.log.console.print(f"{text}  left {self._time_left(done)}", markup=False)

    def _time_left(self, done: int) -> str:
        seconds_per_step = (time.monotonic() - self.started) / max(done - self.first, 1)
        seconds = int(seconds_per_step * (self.steps - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
