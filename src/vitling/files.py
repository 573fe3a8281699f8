"""Atomic writes (temporary file, fsync, rename), folder locks and JSON output."""

from __future__ import annotations

import csv
import errno
import fcntl
import glob
import io
import json
import mimetypes
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from vitling.errors import UserError
from vitling.formatting import escape_cell
from vitling.shortage import explain_shortage

LOCK = ".lock"  # in a folder that a process has claimed
_MAX_STEM = 255 - len("..12345678.part")  # bytes of a name in the temporary one, which may have 255
# names that are not UTF-8 become \udcff, as in JSON
_ENCODING: Any = {"encoding": "utf-8", "errors": "backslashreplace"}
_claims: set[Path] = set()  # lock files that this process holds
_KINDS = ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
_NUMBER = r"(?:-?[\d.]+(?:[eE][-+]?\d+)?|NaN|-?Infinity)"
_NUMBER_LIST = re.compile(rf"\[\n\s*{_NUMBER}(?:,\n\s*{_NUMBER})*\n\s*\]")  # not inside strings: \n is escaped there


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "wb") -> Iterator[IO]:
    """Open a file that appears at `path` only if the block ends without an error.

    It replaces regular files only. Temporary files of killed writers of the same path are removed.
    """
    path = Path(path)
    check_replaceable(path)
    temporary, handle = _make_temporary(path, tempfile.mkstemp)
    lock = os.dup(handle)  # `file` closes the handle before the rename
    try:
        with os.fdopen(handle, mode, **({} if "b" in mode else _ENCODING)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_read_umask())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)


def write_file(path: str | os.PathLike, content: str | bytes) -> None:
    """Write a file at once, as `atomic_write` does."""
    with atomic_write(path, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)


@contextmanager
def scratch_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Make a temporary folder beside `path` for several files that are renamed when all are complete.

    It is deleted at the end, with the folder around it if that is new and empty, and after a kill by the next call
    for the same path.
    """
    path = Path(path)
    existed = path.parent.exists()
    folder, handle = _make_temporary(path, _make_folder)
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
            if not existed:
                with suppress(OSError):  # it has contents now
                    path.parent.rmdir()
        finally:
            os.close(handle)


def remove_leftovers(folder: str | os.PathLike, name: str = "*") -> None:
    """Delete temporary files and folders that killed writers of `name` left in a folder; those in use are locked."""
    for path in Path(folder).glob(f".{'*' if name == '*' else glob.escape(name)}.????????.part"):
        with suppress(OSError), _open_for_lock(path) as handle:
            if _lock(handle, wait=False) is True:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def list_names(folder: str | os.PathLike) -> list[str]:
    """List the names in a folder, except its lock and leftovers of killed writes; empty if there is no folder."""
    path = Path(folder)
    names = [entry.name for entry in path.iterdir()] if path.exists() else []
    return [name for name in names if name != LOCK and not is_leftover(name)]


def is_leftover(name: str) -> bool:
    """Return whether a file name is one that `atomic_write` or `scratch_folder` uses until a write is complete."""
    return re.fullmatch(r"\..+\..{8}\.part", name) is not None


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run directory. A model folder has a config.json too, but no environment.json."""
    return (folder / "config.json").is_file() and (folder / "environment.json").is_file()


def append_line(path: str | os.PathLike, line: str) -> None:
    """Append a line to a regular text file, after ending the last line if a kill has cut it short."""
    check_replaceable(path)
    with open(path, "ab+") as file:
        whole = file.seek(0, os.SEEK_END) == 0 or (file.seek(-1, os.SEEK_END), file.read(1))[1] == b"\n"
        file.write(b"" if whole else b"\n")
        file.write(f"{line}\n".encode("utf-8", "backslashreplace"))


def sync_file(path: str | os.PathLike) -> None:
    """Wait until the contents of a file are on the disk; do nothing if there is no such file."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        os.fsync(file.fileno())


@contextmanager
def lock_folder(folder: str | os.PathLike, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of `folder`, waiting for other processes of this machine; `on_wait` is called before a wait.

    Not re-entrant. The lock is released when the process ends, even by a kill.
    """
    with _open_folder(folder) as handle:
        if _lock(handle, wait=False) is False:
            on_wait()
            _lock(handle, wait=True)
        yield


@contextmanager
def try_lock_folder(folder: str | os.PathLike) -> Iterator[bool]:
    """Try to lock `folder` for the block without waiting; yield whether it worked."""
    with _open_folder(folder) as handle:
        yield _lock(handle, wait=False) is not False


def claim_folder(folder: str | os.PathLike) -> Callable[[], None]:
    """Create a folder if it does not exist, claim it for this process, and return the function that releases it.

    Raise UserError, naming the process and its host, if another one holds it. The claim is released when the process
    ends, even by a kill. Re-entrant. Does nothing in read-only folders and without file locks.
    """
    path = Path(folder).resolve() / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    if path in _claims:
        return lambda: None
    try:
        handle = _open_lock(path)
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return lambda: None
        raise
    _claims.add(path)

    def release() -> None:
        if path in _claims:
            _claims.discard(path)
            try:
                path.unlink(missing_ok=True)
            finally:
                os.close(handle)

    return release


def is_claimed(folder: str | os.PathLike) -> bool:
    """Return whether a process, this one included, has claimed a folder."""
    try:
        handle = os.open(Path(folder).resolve() / LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _lock(handle, wait=False) is not True
    finally:
        os.close(handle)


def clean_folder(folder: str | os.PathLike) -> None:
    """Remove the lock and the temporary files that a killed process has left in a folder."""
    release = claim_folder(folder)
    try:
        remove_leftovers(folder)
    finally:
        release()


def _open_lock(path: Path) -> int:
    """Open and lock a lock file, and write to it who holds it."""
    check_replaceable(path)
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # a process that was rejected has deleted its folder
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            if _lock(handle, wait=False) is False:
                holder = os.read(handle, 200).decode("utf-8", "replace").strip() or "another process"
                raise UserError(
                    f"{path.parent} is in use by {holder}. Wait until that ends, or pass a different --out."
                )
            if _is_same_file(path, handle):
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder deleted it before this process had the lock


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _make_temporary(path: Path, make: Callable[..., tuple[int, str]]) -> tuple[Path, int]:
    """Create a temporary file or folder beside `path`, and lock it; return it and the handle that holds the lock.

    Until it is locked, another process may take it for a leftover, or delete the new and empty folder around it. Then
    it is made again.
    """
    stem = path.name
    while len(os.fsencode(stem)) > _MAX_STEM:
        stem = stem[:-1]
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, stem)
        try:
            handle, name = make(dir=path.parent, prefix=f".{stem}.", suffix=".part")
        except FileNotFoundError:
            continue
        _lock(handle, wait=True)
        if os.path.exists(name):
            return Path(name), handle
        os.close(handle)


def _make_folder(**named: Any) -> tuple[int, str]:
    """Make a temporary folder; return a handle of it and its path."""
    folder = tempfile.mkdtemp(**named)
    return os.open(folder, os.O_RDONLY), folder


@contextmanager
def _open_folder(folder: str | os.PathLike) -> Iterator[int]:
    Path(folder).mkdir(parents=True, exist_ok=True)
    with _open_for_lock(Path(folder)) as handle:
        yield handle


@contextmanager
def _open_for_lock(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place would wait for a writer
    try:
        yield handle
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # closing does not unlock if a child has inherited the handle
        os.close(handle)


def _lock(handle: int, wait: bool) -> bool | None:
    """Lock an open file; return False if another process holds it, None if its file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def check_writable(path: str | os.PathLike, is_picture: bool = False) -> None:
    """Raise UserError if `path` cannot be written; call it before long work, so that a wrong path fails at once.

    Unless a picture is written, the name of an image is refused: a slip must not replace a photograph.

    A full or failing disk raises OSError, as later writes would. Creates no folders, because work that fails must leave
    none behind.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"--out {path} is a directory; pass a file in it.")
    if not is_picture and (mimetypes.guess_type(path.name)[0] or "").startswith("image/"):
        raise UserError(f"--out {path} is the name of an image, and no image is written there. Choose another name.")
    check_replaceable(path)
    existing = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), path.parent)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as problem:
        if explain_shortage(problem):  # a full or failing disk is no wrong input
            raise
        raise UserError(f"--out {path} cannot be written: {problem.strerror}.") from problem


def check_replaceable(path: str | os.PathLike) -> None:
    """Raise UserError if there is anything but a regular file at `path`: renaming would replace a link or a device."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # nothing is there, or writing will raise the error
        return
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "device")
        raise UserError(f"{path} is a {kind}, which is never replaced. Name a regular file or a new one.")


def make_csv(rows: Iterable[Iterable[str]]) -> str:
    """Format rows as CSV in which no cell is a formula."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([escape_cell(cell) for cell in row] for row in rows)
    return text.getvalue()


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Write indented JSON, with each list of plain numbers (a row of a confusion matrix) on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    write_file(path, _NUMBER_LIST.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text) + "\n")


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_not_link(path: Path) -> None:
    """Raise UserError if a part of a run's directory is a link, through which the run would write elsewhere."""
    if path.is_symlink():
        raise UserError(
            f"{path} is a link, and a run writes only into its own directory. Replace the link by what it points to; "
            "--out itself may be a link."
        )
