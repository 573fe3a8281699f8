"""SIGTERM and SIGINT ask; the loop saves at the next step and ends. A second SIGINT ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitling.errors import INTERRUPTED, TERMINATED, Interrupted

EXIT_CODES = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED}


class StopRequest:
    """`code` is the exit code that a signal asked for, 0 while none has come."""

    code = 0

    def __call__(self, number: int, frame: object) -> None:
        if self.code and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = EXIT_CODES[signal.Signals(number)]


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    asked = StopRequest()
    with _handled_by(asked):
        yield asked


@contextmanager
def raise_on_signal(message: str) -> Iterator[None]:
    """For work whose finished parts are whole files: a signal ends it where it is."""

    def end(number: int, frame: object) -> None:
        raise Interrupted(message, EXIT_CODES[signal.Signals(number)])

    with _handled_by(end):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python forbids handlers elsewhere
        yield
        return
    before = {number: signal.signal(number, handler) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def call_on_parent_exit(act: Callable[[], None]) -> None:
    """For a process whose stdin is a pipe from its parent, which is closed when that ends, whatever it dies of."""

    def wait() -> None:
        os.read(0, 1)  # past Python's buffer, whose lock would be in the way at the end
        act()

    threading.Thread(target=wait, daemon=True).start()
