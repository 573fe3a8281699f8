"""Exceptions that end a command without a traceback, and its exit codes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

DONE, WRONG_INPUT, ABORTED = 0, 2, 3
INTERRUPTED, TERMINATED = 130, 143


class UserError(Exception):
    """Wrong input. The message says what is wrong and how to fix it."""

    exit_code = WRONG_INPUT


class InvalidFile(UserError):
    """A file whose content cannot be used: damaged, of another version, or not written by vitling."""

    def __init__(self, path: str | os.PathLike, problem: str, field: str = ""):
        place = f"{os.fspath(path)}, {field}" if field else os.fspath(path)
        super().__init__(f"{place}: {problem}.")
        self.path, self.problem, self.field = os.fspath(path), problem, field


class RunAborted(Exception):
    """A run that cannot sensibly continue: a loss that is not finite, a collapse, a full disk."""

    exit_code = ABORTED


class MachineFault(RunAborted):
    """A run that ended for a reason that any other run would meet as well, such as a full disk."""


class Interrupted(BaseException):
    """The end of a run on a signal, after everything was saved.

    A BaseException, like KeyboardInterrupt, so that `except Exception` around a damaged file does not swallow it.
    """

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def unwrap(problem: BaseException) -> BaseException:
    """Return the exception below RuntimeErrors: torch's zip writer hides what a write raised behind its own."""
    found: BaseException | None = problem
    while isinstance(found, RuntimeError):
        found = found.__cause__ or found.__context__
    return found or problem


def summarise_error(problem: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters, or its type if it has no message."""
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__


@contextmanager
def reveal_interruptions() -> Iterator[None]:
    """Raise an Interrupted or KeyboardInterrupt that is hidden behind RuntimeErrors."""
    try:
        yield
    except RuntimeError as problem:
        if isinstance(found := unwrap(problem), Interrupted | KeyboardInterrupt):
            raise found from None
        raise
