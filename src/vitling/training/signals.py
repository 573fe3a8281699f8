"""SIGTERM and SIGINT: the loop saves at the next step and ends. A second SIGINT ends at once."""

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
    """Signal handler that remembers the exit code of the signal in `code`, 0 until one arrives."""

    code = 0
    message = ""  # of the Interrupted that a signal raises at once; "": it waits for the caller

    def __call__(self, number: int, frame: object) -> None:
        if self.code and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.code = EXIT_CODES[signal.Signals(number)]
        if self.message:
            raise Interrupted(self.message, self.code)

    @contextmanager
    def raise_at_once(self, message: str) -> Iterator[None]:
        """Raise Interrupted as soon as a signal arrives: for work that is long and can be repeated."""
        self.message = message
        try:
            yield
        finally:
            self.message = ""


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Yield a StopRequest that the caller polls. A signal that the block did not obey is sent again at its end."""
    request = StopRequest()
    with _handle_signals(request):
        yield request
    if request.code:
        signal.raise_signal(next(number for number, code in EXIT_CODES.items() if code == request.code))


@contextmanager
def raise_on_signal(message: str) -> Iterator[None]:
    """Raise Interrupted as soon as a signal arrives; for work that leaves only complete files behind."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(message, EXIT_CODES[signal.Signals(number)])

    with _handle_signals(interrupt):
        yield


@contextmanager
def _handle_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers in the main thread only
        yield
        return
    before = {number: signal.signal(number, handler) for number in EXIT_CODES}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def call_on_parent_exit(act: Callable[[], None]) -> None:
    """Call `act` when the parent process ends for any reason: stdin must be a pipe from it, which then closes."""

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin, whose buffer lock would block the exit
        act()

    threading.Thread(target=wait, daemon=True).start()
