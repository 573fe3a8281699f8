"""Two errors that end a command without a traceback, and the exit codes that belong to them."""

from __future__ import annotations

DONE, WRONG_INPUT, ABORTED = 0, 2, 3
INTERRUPTED, TERMINATED = 130, 143


class UserError(Exception):
    """The input is wrong. The message says what is wrong and what to do."""

    exit_code = WRONG_INPUT


class RunAborted(Exception):
    """The run could not go on in good faith: a loss that is not finite, a collapse, a full disk."""

    exit_code = ABORTED


class Interrupted(BaseException):
    """A signal asked the run to end; everything is saved. As KeyboardInterrupt, it is nobody's to handle but who knows
    it: code that expects any error of a damaged file must not take it for one."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code
