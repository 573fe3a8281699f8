"""SIGTERM and SIGINT ask; the loop saves at the next step and ends. A second SIGINT ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vitling.errors import INTERRUPTED, TERMINATED

EXIT_CODES = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED}


class Asked:
    """`code` is the exit code that a signal asked for, 0 while none has come."""

    code = 0

    def __call__(self, number: int, frame: object) -> None:
        if self.code and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = EXIT_CODES[signal.Signals(number)]


@contextmanager
def caught() -> Iterator[Asked]:
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():  # Python forbids handlers elsewhere
        yield asked
        return
    before = {number: signal.signal(number, asked) for number in EXIT_CODES}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
