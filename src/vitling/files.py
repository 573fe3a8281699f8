"""Files that are either whole or not there: write beside, fsync, rename."""

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
_NUMBERS = re.compile(rf"\[\n\s*{_NUMBER}(?:,\n\s*{_NUMBER})*\n\s*\]")  # no string matches: its newlines are escaped


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Open a file that appears under `path` only when the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
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
    with _opened(folder) as handle:
        if not _is_ours(handle, waiting=False):
            on_wait()
            _is_ours(handle, waiting=True)
        yield


@contextmanager
def try_lock_folder(folder: str | os.PathLike) -> Iterator[bool]:
    """Whether this process has the folder for itself while the block lasts, and no other has `claimed` or `locked` it.
    (Always, on Windows.)"""
    with _opened(folder) as handle:
        yield _is_ours(handle, waiting=False)


@contextmanager
def _opened(folder: str | os.PathLike) -> Iterator[int]:
    if fcntl is None:
        yield -1
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone would not do, if a child has inherited it
        os.close(handle)


def _is_ours(handle: int, waiting: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waiting else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def check_writable(path: str | os.PathLike) -> None:
    """For the start of long work whose result goes to `path`: a wrong name is said now, not at the end. Folders are
    not made yet: work that fails is to leave none."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"--out {path} is a directory; name a file in it.")
    there = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path.parent)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as problem:
        raise UserError(f"--out {path} cannot be written: {problem.strerror}.") from problem


def write_json(path: str | os.PathLike, value: Any, default: Callable[[Any], Any] = str) -> None:
    """Indented; a list of plain numbers, such as a row of a confusion matrix, takes one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=default)
    with atomic_write(path, "w") as file:
        file.write(_NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text))
        file.write("\n")


def read_json(path: str | os.PathLike) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
