"""Check which calls the pickle in a torch file makes, without making them.

torch.load(weights_only=True) executes no code of the file, but it calls bytearray, codecs and the types of tensors with
arguments of the file: 50 bytes can ask for any amount of memory, and 200 kB for hours in a codec.
"""

from __future__ import annotations

import pickle
import pickletools
import tarfile
import zipfile
from typing import IO, Any

ALLOWED_CALLS = {  # by state dicts; torch refuses names that it does not know
    "collections OrderedDict",
    "collections Counter",
    "builtins set",
    "builtins complex",
    "__builtin__ set",
    "__builtin__ complex",
    "torch Size",
    "torch device",
    "torch.serialization _get_layout",
    "torch.nn.parameter Parameter",
}
ENCODE = "_codecs encode"
LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages
_MARK = object()
_VALUES = {  # opcodes that push something that is never called
    *("NONE", "NEWFALSE", "NEWTRUE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "EMPTY_SET"),
}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINSTRING", "BINSTRING"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_POPS = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "POP": 1}


class _Global(str):
    """Name of a function or a type, such as "torch FloatTensor"."""


def check_torch_calls(file: IO[bytes]) -> None:
    """Raise UnpicklingError if loading the file would call something that a state dict does not need; other errors if
    it is no torch file."""
    file.seek(0)
    start = file.read(tarfile.BLOCKSIZE)
    if start.startswith(b"PK\x03\x04"):  # as torch decides
        with zipfile.ZipFile(file) as archive:
            names = [name.casefold() for name in archive.namelist()]
            pickles = [name for name in archive.namelist() if name.casefold().rpartition("/")[2] == "data.pkl"]
            if len(set(names)) < len(names) or len(pickles) != 1:  # torch might read another one
                raise pickle.UnpicklingError("not exactly one data.pkl")
            with archive.open(pickles[0]) as member:
                check_calls(member)
    elif not start.startswith(b"\x80") or _is_tar(start):  # every pickle since protocol 2 begins with this
        raise ValueError("neither a zip file nor a pickle")
    else:
        file.seek(0)
        for _ in range(LEGACY_PICKLES):
            check_calls(file)
    file.seek(0)


def check_calls(file: IO[bytes]) -> None:
    """Follow a pickle to its end, and raise UnpicklingError for calls that are not allowed.

    Only names, texts and tuples are kept, and nothing is hashed or compared.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, value, _ in pickletools.genops(file):
        name = opcode.name
        if name == "STOP":
            return
        if name == "GLOBAL":
            stack.append(_Global(value))
        elif name in _VALUES:
            stack.append(None)
        elif name in _TEXTS:
            stack.append(value)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            stack.append(_pop_to_mark(stack))
        elif name in _TUPLES:
            stack.append(_pop(stack, _TUPLES[name]))
        elif name in ("APPENDS", "SETITEMS"):
            _pop_to_mark(stack)
        elif name in _POPS:
            _pop(stack, _POPS[name])
        elif name in ("REDUCE", "NEWOBJ"):
            _check_call(*_pop(stack, 2))
            stack.append(None)
        elif name == "BINPERSID":
            _pop(stack, 1)
            stack.append(None)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[value] = stack[-1] if stack else None
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo.get(value))
        elif name != "PROTO":
            raise pickle.UnpicklingError(f"opcode {name}")


def _check_call(function: Any, values: Any) -> None:
    if isinstance(function, _Global):
        rebuilds = function.startswith("torch.") and function.partition(" ")[2].startswith("_rebuild_")
        if rebuilds or function in ALLOWED_CALLS:
            return
        if function == ENCODE and values[1:] == ("latin1",):  # how pickle writes bytes
            return
    raise pickle.UnpicklingError(f"calls {str(function)[:50]}")


def _pop(stack: list[Any], count: int) -> tuple[Any, ...]:
    if len(stack) < count:
        raise pickle.UnpicklingError("ends too early")
    found = tuple(stack[len(stack) - count :])
    del stack[len(stack) - count :]
    return found


def _pop_to_mark(stack: list[Any]) -> tuple[Any, ...]:
    for i in range(len(stack) - 1, -1, -1):
        if stack[i] is _MARK:
            found = tuple(stack[i + 1 :])
            del stack[i:]
            return found
    raise pickle.UnpicklingError("ends too early")


def _is_tar(start: bytes) -> bool:
    """Return whether a file is a tar archive, which torch would read as its oldest format."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
