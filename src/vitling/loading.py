"""Readers for files that may be damaged or come from somebody else: JSON, npz and torch files.

Every problem with the content raises `InvalidFile`; nothing in a file is executed. JSON is checked against types:
dataclasses for settings, TypedDicts (`records.py`) for everything else. Imports numpy and torch on first use.
"""

from __future__ import annotations

import errno
import glob
import io
import json
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, is_typeddict

import msgspec

from vitling.errors import InvalidFile, UserError, summarise_error
from vitling.formatting import shorten_list
from vitling.pickles import check_torch_calls

if TYPE_CHECKING:
    import numpy as np
    import torch

MAX_FILE = 2 * 10**9  # bytes of a file that is read as a whole: an image, or COCO annotations (LVIS has 1.2 GB)
MAX_TEXT = 10**9  # bytes of lists and tables, which take several times as much memory; FER2013's has 0.3 GB
MAX_UNPACKED = 10**9  # bytes that any file may unpack to
MAX_RATIO = 100  # larger ones may unpack to so many times their size; deflate reaches 1,000, but not with images
MAX_DIGITS = 18  # of a number in a name of data; all such numbers fit into 64 bits
MAX_DEPTH = 64  # nested lists and objects; our own files have fewer than 10
_INT64 = range(-(2**63), 2**63)
_PLACE = re.compile(r"^(?P<problem>.*?)(?: - at `(?:\$\.?)?(?P<field>.*)`)?$", re.DOTALL)


class _NamedFile(io.FileIO):
    """File whose errors while reading name it, as those of `open` do."""

    def __init__(self, handle: int, path: str | os.PathLike):
        super().__init__(handle)
        self.path = os.fspath(path)

    def readinto(self, buffer: Any) -> int | None:
        with self._name_errors():
            return super().readinto(buffer)

    def readall(self) -> bytes:
        with self._name_errors():
            return super().readall()

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            problem.filename = self.path
            raise


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
    """Open a regular file for reading. Others, such as a named pipe that nobody writes to, raise OSError."""
    if "\0" in os.fsdecode(path):
        raise OSError(errno.EINVAL, "A name with a NUL character", os.fspath(path))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(mode := os.fstat(handle).st_mode):
        return io.BufferedReader(_NamedFile(handle, path))
    os.close(handle)
    code, problem = (errno.EISDIR, "Is a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "Not a regular file")
    raise OSError(code, problem, os.fspath(path))


def check_regular(path: str | os.PathLike) -> None:
    """Raise OSError for anything but a regular file, before a library opens it by its name."""
    open_regular(path).close()


def open_text(
    path: str | os.PathLike, encoding: str = "utf-8", errors: str = "strict", newline: str | None = None
) -> TextIO:
    """Open a regular file as text; one of more than MAX_TEXT bytes raises OSError."""
    check_size(path, os.stat(path).st_size, MAX_TEXT)
    return io.TextIOWrapper(open_regular(path), encoding, errors, newline)


def read_bytes(path: str | os.PathLike) -> bytes:
    """Read a regular file; one of more than MAX_FILE bytes, which no caller expects, raises OSError."""
    with open_regular(path) as file:
        check_size(path, os.fstat(file.fileno()).st_size)
        return file.read()


def check_size(path: str | os.PathLike, size: int, limit: int | None = None) -> None:
    """Raise OSError if `size` bytes, a file or a part of one, are more than `limit`, by default MAX_FILE."""
    limit = MAX_FILE if limit is None else limit
    if size > limit:
        problem = f"Too large: {size / 1e9:.1f} GB, over {limit / 1e9:g} GB"
        raise OSError(errno.EINVAL, problem, os.fspath(path))


def expand_home(path: str | os.PathLike) -> Path:
    """Replace a leading ~ by the home directory; raise UserError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no such user. For a file of this name, use ./{path}.") from None


def check_expansion(path: str | os.PathLike, size: int) -> None:
    """Raise InvalidFile if `size` bytes, which a file unpacks to, are far more than real data would."""
    if size > find_limit(path):
        raise InvalidFile(path, f"unpacks to {size / 1e9:.1f} GB, over {MAX_RATIO} times its size, so it is not read")


def find_limit(path: str | os.PathLike) -> int:
    """Return how many bytes a file may unpack to."""
    return max(MAX_UNPACKED, MAX_RATIO * os.stat(path).st_size)


def check_zip(path: str | os.PathLike, file: IO[bytes]) -> None:
    """Check what the members of a zip file (npz, torch) unpack to together; other and damaged files pass."""
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except Exception:  # the caller's reader describes what is wrong
        size = 0
    file.seek(0)
    check_expansion(path, size)


def find_matches(pattern: str) -> list[Path]:
    """Find what a pattern matches, sorted and without hidden names; ** does not follow links, which may be circular."""
    if "**" not in pattern:
        return [Path(path) for path in sorted(glob.glob(pattern))]
    anchor, parts = Path(pattern).anchor, Path(pattern).parts
    fixed = next(k for k, part in enumerate(parts) if "**" in part)  # parts that the pattern spells out, such as ..
    try:
        found = Path(anchor).glob(pattern.removeprefix(anchor))
        return sorted(path for path in found if not any(part.startswith(".") for part in path.parts[fixed:]))
    except (ValueError, NotImplementedError, IndexError):  # such as a**b
        return []


def read_json(path: str | os.PathLike) -> Any:
    """Read a JSON file of any content."""
    return parse_json(read_bytes(path), Any, path)


def read_record(path: str | os.PathLike, kind: Any) -> dict[str, Any]:
    """Read a JSON file and check it against `kind`, a TypedDict; raise InvalidFile if a field differs."""
    return parse_json(read_bytes(path), kind, path)


def read_json_lines(path: str | os.PathLike, kind: Any) -> list[dict[str, Any]]:
    """Read one JSON object per line. Lines that do not match `kind` are skipped: a kill may cut the last one short."""
    found = []
    for line in read_bytes(path).splitlines():
        with suppress(InvalidFile):
            found.append(parse_json(line, kind, path))
    return found


def parse_json(text: bytes | str, kind: Any, where: str | os.PathLike) -> Any:
    """Parse JSON and check it against `kind`; `where` names it in the error."""
    if isinstance(text, bytes):  # json would also guess UTF-16 and UTF-32, which other programs do not read
        try:
            text = text.decode("utf-8-sig", "surrogatepass")
        except UnicodeDecodeError as problem:
            raise InvalidFile(where, f"not UTF-8 ({problem.reason} at byte {problem.start})") from None
    try:
        value = json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise InvalidFile(where, f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as problem:
        raise InvalidFile(where, f"not valid JSON ({problem})") from None
    if _is_deeper(value, MAX_DEPTH):
        raise InvalidFile(where, f"nested deeper than {MAX_DEPTH} levels")
    return convert(value, kind, where)


def convert(value: Any, kind: Any, where: str | os.PathLike) -> Any:
    """Convert plain values to `kind`, or check them if it is a TypedDict, whose additional keys are kept."""
    try:
        converted = msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidFile(where, *_explain(str(error), value, kind)) from None
    except UnicodeEncodeError:  # half of a surrogate pair, which only file names may have
        raise InvalidFile(where, "text that is not valid Unicode") from None
    return value if is_typeddict(kind) else converted


def read_npz(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file, without pickles. Arrays that are larger than their content raise InvalidFile."""
    import zipfile

    import numpy as np

    with open_regular(path) as raw:
        check_zip(path, raw)
        try:
            with zipfile.ZipFile(raw) as archive:
                for member in archive.infolist():
                    with archive.open(member) as file:
                        _check_array_size(file, member.file_size)
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in arrays.files}
                for array in found.values():
                    if array.dtype.kind == "U":
                        array.tolist()  # raises for numbers that are not characters
                return found
        except Exception as error:  # zipfile, zlib and numpy raise errors of many kinds
            raise InvalidFile(path, f"cannot be read as npz ({summarise_error(error)})") from None


def read_torch(path: str | os.PathLike) -> dict[Any, Any]:
    """Load a dict that torch.save wrote: tensors, numbers, text and containers; other objects raise InvalidFile."""
    import pickle

    import torch

    with open_regular(path) as file:
        check_zip(path, file)
        try:
            check_torch_calls(file)
            with warnings.catch_warnings(action="ignore"):  # such as torch's about sparse tensors
                content = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise InvalidFile(
                path,
                "damaged, or contains Python objects other than tensors, which could execute arbitrary code. Save only "
                "its state dict, preferably as .safetensors",
            ) from None
        except Exception as error:  # torch raises almost any kind for damaged files
            raise InvalidFile(path, f"cannot be read as a torch file ({summarise_error(error)})") from None
    if not isinstance(content, dict):
        raise InvalidFile(path, f"expected a state dict, got {type(content).__name__}")
    return content


def read_safetensors(path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Load a safetensors file."""
    from safetensors.torch import load_file

    check_regular(path)
    try:
        return load_file(path)
    except Exception as error:  # SafetensorError, and KeyError for a type that torch does not have
        raise InvalidFile(path, f"cannot be read as safetensors ({summarise_error(error)})") from None


def _check_array_size(file: Any, declared: int) -> None:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file)
    count = 1
    for side in shape:
        count *= side
    if dtype.itemsize == 0 or count < 0 or count * dtype.itemsize > declared:
        raise ValueError(f"an array of shape {shape} and type {dtype.str} does not fit into {declared} bytes")


def _parse_int(text: str) -> int:
    number = int(text)  # raises ValueError above 4,300 digits
    if number not in _INT64:
        raise ValueError("an integer of more than 64 bits")
    return number


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether containers are nested deeper than `levels`; works without recursion."""
    layer: Iterable[Any] = [value]
    for _ in range(levels + 1):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in layer if isinstance(one, dict | list)]
        layer = [item for items in inner for item in items]
        if not layer:
            return False
    return True


def _explain(message: str, value: Any, kind: Any) -> tuple[str, str]:
    """Return what is wrong and in which field, from a message of msgspec."""
    found = _PLACE.match(message)
    assert found is not None
    problem = found["problem"].replace("`", "").replace("Object missing", "missing").replace("Expected", "expected")
    if is_dataclass(kind) and isinstance(value, dict):
        unknown = sorted(set(value) - {f.name for f in fields(kind)} - {"verb", "origins"})
        if unknown:
            problem += f". Unknown here: {shorten_list(unknown)}; a newer version of vitling may have written the file"
    return problem, found["field"] or ""
