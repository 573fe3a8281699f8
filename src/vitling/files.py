"""Atomic writes (temporary file, fsync, rename), folder locks and JSON files."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from vitling.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NUMBER = r"(?:-?[\d.]+(?:[eE][-+]?\d+)?|NaN|-?Infinity)"
_NUMBER_LIST = re.compile(rf"\[\n\s*{_NUMBER}(?:,\n\s*{_NUMBER})*\n\s*\]")  # not inside strings: \n is escaped there


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Open a file that appears at `path` only if the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_read_umask())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def lock_folder(folder: str | os.PathLike, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of `folder`, waiting for other processes of this machine; `on_wait` is called before a wait.

    Not re-entrant. The lock ends with the process, however that ends. Does nothing on Windows.
    """
    with _open_folder(folder) as handle:
        if not _lock(handle, wait=False):
            on_wait()
            _lock(handle, wait=True)
        yield


@contextmanager
def try_lock_folder(folder: str | os.PathLike) -> Iterator[bool]:
    """Try to lock `folder` for the block without waiting; yield whether it worked (always True on Windows)."""
    with _open_folder(folder) as handle:
        yield _lock(handle, wait=False)


@contextmanager
def _open_folder(folder: str | os.PathLike) -> Iterator[int]:
    if fcntl is None:
        yield -1
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not unlock if a child has inherited the handle
        os.close(handle)


def _lock(handle: int, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def check_writable(path: str | os.PathLike) -> None:
    """Raise UserError if `path` cannot be written; call it before long work, so that a wrong path fails at once.

    Creates no folders, because work that fails must leave none behind.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"--out {path} is a directory; pass a file in it.")
    existing = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path.parent)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as problem:
        raise UserError(f"--out {path} cannot be written: {problem.strerror}.") from problem


def write_json(path: str | os.PathLike, value: Any, default: Callable[[Any], Any] = str) -> None:
    """Write indented JSON, with each list of plain numbers (a row of a confusion matrix) on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=default)
    with atomic_write(path, "w") as file:
        file.write(_NUMBER_LIST.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text))
        file.write("\n")


def read_json(path: str | os.PathLike) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
