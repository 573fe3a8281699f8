"""The progress of a run on the terminal: a bar, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from vitling.console import LINE_INTERVAL, Log


class _BarOverText(Progress):
    """The numbers have a line of their own: beside the bar they would be cut off at 80 columns."""

    text = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.text, no_wrap=False, overflow="fold")


class Display:
    """Epoch, terms, lr, images/s, share of time waiting for data, time left."""

    def __init__(self, log: Log, steps: int, done: int):
        self.log, self.steps, self.first = log, steps, done
        self.started, self.last_line = time.monotonic(), 0.0
        self.last_sign = self.started  # of life
        self.progress: _BarOverText | None = None

    def __enter__(self) -> Display:
        if self.log.console.is_terminal and not self.log.silent:
            columns = (
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self.progress = _BarOverText(*columns, console=self.log.console, transient=True)
            self.task = self.progress.add_task("", total=self.steps, completed=self.first)
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress:
            self.progress.stop()

    def step(self, done: int) -> None:
        """Without a terminal a line in every ten seconds that have none: an epoch may take long."""
        if self.progress:
            self.progress.update(self.task, completed=done)
        elif time.monotonic() - self.last_sign >= LINE_INTERVAL:
            self._say(f"step {done} of {self.steps}", done)

    def metrics(self, done: int, text: str, last: bool) -> None:
        """At the end of an epoch; without a terminal not more often than every ten seconds. log.txt has them all."""
        self.log.debug(text)
        if self.progress:
            self.progress.text = text
            self.progress.update(self.task, completed=done)
        elif last or time.monotonic() - self.last_line >= LINE_INTERVAL:
            self.last_line = time.monotonic()
            self._say(text, done)

    def _say(self, text: str, done: int) -> None:
        self.last_sign = time.monotonic()
        self.log.console.print(f"{text}  left {self._left(done)}", markup=False)

    def _left(self, done: int) -> str:
        pace = (time.monotonic() - self.started) / max(done - self.first, 1)
        seconds = int(pace * (self.steps - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
