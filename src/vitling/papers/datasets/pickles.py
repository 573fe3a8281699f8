"""Reader of pickled arrays, lists, numbers and text, such as CIFAR's files, that cannot run code.

A small interpreter of the pickle opcodes that such files consist of. Arrays are built from their bytes and a plain
numeric type: numpy's own unpickling accepts states that crash Python.
"""

from __future__ import annotations

import math
import pickletools
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitling.errors import InvalidFile
from vitling.loading import read_bytes

VALUES = {  # opcodes whose argument is the value
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
MAX_CALLS = 16  # of functions and states; an array takes five, and each may copy the file's bytes
MAX_DIMENSIONS = 8
NUMERIC = re.compile(r"[|<>=]?(b1|[iu][1248]|f[248])")


class Number:
    """A numeric dtype: dtype(text, align, copy), with the byte order in its state."""

    def __init__(self, text: str, *_: Any):
        if not isinstance(text, str) or not NUMERIC.fullmatch(text):
            raise ValueError("an array that is not of numbers")
        self.dtype = np.dtype(text)

    def set_state(self, state: tuple) -> None:
        _, order, subtype, names, fields, *_ = state
        if (subtype, names, fields) != (None, None, None) or order not in ("|", "<", ">", "="):
            raise ValueError("an array that is not of plain numbers")
        self.dtype = self.dtype.newbyteorder(order)


class Array:
    """An array, as numpy pickles it: _reconstruct(ndarray, ...) with the content in its state, or _frombuffer."""

    def __init__(self, *_: Any):
        self.values: np.ndarray | None = None

    def set_state(self, state: tuple) -> None:
        _, shape, number, fortran, raw = state
        self._fill(raw, number, shape, "F" if fortran else "C")

    @classmethod
    def from_buffer(cls, raw: Any, number: Any, shape: Any, order: Any) -> Array:
        array = cls()
        array._fill(raw, number, shape, "F" if order == "F" else "C")
        return array

    def _fill(self, raw: Any, number: Any, shape: Any, order: Literal["C", "F"]) -> None:
        raw = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as text
        sides = shape if isinstance(shape, tuple) and len(shape) <= MAX_DIMENSIONS else (-1,)
        if not isinstance(number, Number) or any(type(side) is not int or side < 0 for side in sides):
            raise ValueError("an array without type or shape")
        if math.prod(shape) * number.dtype.itemsize != len(raw):
            raise ValueError(f"an array of shape {shape} with {len(raw):,} bytes")
        self.values = np.frombuffer(raw, number.dtype).reshape(shape, order=order)


def _encode(text: str, codec: str) -> bytes:
    if codec not in ("latin1", "latin-1"):  # others may take very long
        raise ValueError("text in another code than latin1")
    return text.encode("latin1")


KNOWN = {
    "numpy ndarray": Array,
    "numpy dtype": Number,
    "_codecs encode": _encode,
    **{f"numpy.{core}.multiarray _reconstruct": Array for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": Array.from_buffer for core in ("core", "_core")},
}


def read_pickle(path: Path) -> dict[str, Any]:
    """Load a pickled dict of arrays, lists and text; raise InvalidFile for anything else."""
    try:
        content = _interpret(read_bytes(path))
        return {key: value.values if isinstance(value, Array) else value for key, value in content.items()}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:  # damaged files underrun the stack
        raise InvalidFile(path, f"not as it was distributed ({str(error)[:200]})") from None


def _interpret(raw: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    calls = 0
    argument: Any
    for opcode, argument, _ in pickletools.genops(raw):
        name: str = opcode.name
        calls += name in ("REDUCE", "BUILD")
        if calls > MAX_CALLS:
            raise ValueError("it has many arrays")
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in TUPLES:
            stack.append(tuple(stack.pop() for _ in range(TUPLES[name]))[::-1])
        elif name in ("TUPLE", "LIST", "DICT"):
            items = _pop_to_mark(stack, marks)
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _pair(items))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else _pop_to_mark(stack, marks)
            _expect(stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else _pop_to_mark(stack, marks)
            _expect(stack[-1], dict).update(_pair(items))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            wanted = argument if name == "GLOBAL" else " ".join([stack.pop(), stack.pop()][::-1])
            if wanted not in KNOWN:
                raise ValueError(f"it asks for {wanted.replace(' ', '.')}")
            stack.append(KNOWN[wanted])
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if not any(function is known for known in KNOWN.values()):
                raise ValueError("it calls something that is no function")
            stack.append(function(*_expect(arguments, tuple)))
        elif name == "BUILD":
            state = stack.pop()
            _expect(stack[-1], Number | Array).set_state(_expect(state, tuple))
        elif name == "STOP":
            return _expect(stack.pop(), dict)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"it has the opcode {name}")
    raise ValueError("it ends early")


def _pop_to_mark(stack: list[Any], marks: list[int]) -> list[Any]:
    start = marks.pop()
    items = stack[start:]
    del stack[start:]
    return items


def _pair(items: list[Any]) -> dict[str, Any]:
    if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
        raise ValueError("a dict with other keys than text")
    return dict(zip(items[::2], items[1::2]))


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} in the wrong place")
    return value
