"""Faults of the machine, injected into file operations: kills, signals, full and failing disks.

`FileOperations` interposes all operations that change files below a folder. Each has a moment before it takes effect
and, for writes, one when half of it is done. A file that is written in many pieces (a checkpoint has thousands) has
moments at its pieces 1, 2, 4, 8 and so on. At the chosen moment the fault happens:

- SIGKILL: this and every later operation raises Killed, which no code catches, so nothing more reaches the disk.
- SIGTERM: the signal is raised. Where vitling has no handler, it kills.
- ENOSPC: this and every later operation that needs space fails.
- EIO: this operation fails.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Fault = Literal["SIGKILL", "SIGTERM", "ENOSPC", "EIO"]
FAULTS: tuple[Fault, ...] = ("SIGKILL", "SIGTERM", "ENOSPC", "EIO")
_NAMES = ("mkdir", "unlink", "remove", "rmdir", "rename", "replace", "fsync")
_NEED_SPACE = ("open", "write", "half", "mkdir", "fsync")


class Killed(BaseException):
    """The end of the process."""


@dataclass
class FileOperations:
    """Counts the moments of file operations below `root`; at number `at`, `fault` happens."""

    root: Path
    fault: Fault | None = None
    at: int = -1
    on_moment: Callable[[int], None] | None = None  # called with the number of each
    moments: list[str] = field(default_factory=list)  # what happened at each, such as "write log.txt"
    dead: bool = False
    full: bool = False

    def is_due(self, path: Any) -> bool:
        """Return whether the fault happens at the next moment."""
        chosen = self.on_moment is not None or len(self.moments) == self.at
        return chosen and not self.dead and self._is_below(path)

    def reach(self, operation: str, path: Any) -> None:
        """Count a moment, and let the fault happen at the chosen one."""
        if self.dead:
            raise Killed
        if not self._is_below(path):
            return
        if self.full and operation in _NEED_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self.moments.append(f"{operation} {os.path.basename(os.fspath(path)) if not isinstance(path, int) else path}")
        if self.on_moment:
            self.on_moment(len(self.moments) - 1)
        if len(self.moments) - 1 == self.at:
            self._strike(operation, path)

    def _strike(self, operation: str, path: Any) -> None:
        if self.fault == "SIGKILL":
            self.dead = True
            raise Killed
        if self.fault == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        elif self.fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        elif self.fault == "ENOSPC":
            self.full = True
            if operation in _NEED_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _is_below(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return os.path.abspath(os.fspath(path)).startswith(str(self.root))

    @contextmanager
    def interpose(self) -> Iterator[FileOperations]:
        before = {name: getattr(os, name) for name in (*_NAMES, "open")}
        before_open, before_handler = io.open, signal.signal(signal.SIGTERM, self._die)
        for name in _NAMES:
            setattr(os, name, self._wrap(name, before[name]))
        os.open = self._wrap_os_open(before["open"])  # type: ignore[assignment]
        io.open = builtins.open = self._wrap_open(before_open)  # type: ignore[assignment]
        try:
            yield self
        finally:
            for name, original in before.items():
                setattr(os, name, original)
            io.open = builtins.open = before_open
            signal.signal(signal.SIGTERM, before_handler)

    def _die(self, number: int, frame: object) -> None:
        self.dead = True
        raise Killed

    def _wrap(self, name: str, original: Callable) -> Callable:
        def act(path: Any, *others: Any, **named: Any) -> Any:
            if named.get("dir_fd") is not None:  # shutil.rmtree names files within an open folder
                self.reach(name, os.path.join(os.readlink(f"/proc/self/fd/{named['dir_fd']}"), os.fspath(path)))
            else:
                self.reach(name, path)
            return original(path, *others, **named)

        return act

    def _wrap_os_open(self, original: Callable) -> Callable:
        def act(path: Any, flags: int, *others: Any, **named: Any) -> int:
            if flags & os.O_CREAT:
                self.reach("open", path)
            return original(path, flags, *others, **named)

        return act

    def _wrap_open(self, original: Callable) -> Callable:
        def act(path: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
            writes = any(letter in mode for letter in "wax+")
            if writes and not isinstance(path, int):
                self.reach("open", path)
            file = original(path, mode, *others, **named)
            return _File(file, path, self) if writes and self._is_below(path) else file

        return act


class _File:
    """A file opened for writing, whose writes are interposed."""

    def __init__(self, file: Any, path: Any, operations: FileOperations):
        self._file, self._operations, self._pieces = file, operations, 0
        self._path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path

    def write(self, content: Any) -> int:
        self._pieces += 1
        if self._pieces & (self._pieces - 1) or not len(content):  # not a power of two
            if self._operations.dead or self._operations.full:
                self._operations.reach("write", self._path)
            return self._file.write(content)
        self._operations.reach("write", self._path)
        half = len(content) // 2 if self._operations.is_due(self._path) else 0
        if half:
            self._file.write(content[:half])
            self._file.flush()
        self._operations.reach("half", self._path)
        self._file.write(content[half:])
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator:
        return iter(self._file)
