"""Arrays of HDF5 files, read in a separate process: libhdf5 can crash on a damaged file.

`python -m vitling.papers.datasets.hdf5 PATH NAME` takes a row number on each line, or `all`, and answers with a line of
JSON (type and shape, or an error) and the bytes.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from vitling.errors import InvalidFile, UserError, summarise_error
from vitling.loading import check_expansion, check_regular

MOST_CRASHES = 3  # of a file; then its other rows are not tried, since each would start a process
MOST_BYTES = 10**8  # of a row, an image; PatchCamelyon's have 28 kB
_CRASHED = "cannot be read as an HDF5 file (its reader crashed)"


class H5Reader:
    """Reader of the rows of an array. Each process starts its own child, which exits with its parent."""

    def __init__(self, path: Path, name: str):
        check_regular(path)
        if not find_spec("h5py"):
            raise UserError("PatchCamelyon needs h5py: pip install 'vitling[hdf5]'")
        self.path, self.name, self.lock = path, name, threading.Lock()
        self.child: tuple[int, subprocess.Popen[bytes]] | None = None
        self.crashes = 0

    def __reduce__(self):
        return H5Reader, (self.path, self.name)

    def __call__(self, row: int) -> np.ndarray:
        return self._request(str(row))

    def read_all(self) -> np.ndarray:
        """Read the whole array, and end the child."""
        try:
            return self._request("all")
        finally:
            self._end_child()

    def _request(self, what: str) -> np.ndarray:
        with self.lock:
            if self.crashes >= MOST_CRASHES:
                raise InvalidFile(self.path, _CRASHED)
            if self.child is None or self.child[0] != os.getpid():
                command = [sys.executable, "-P", "-m", __name__, str(self.path), self.name]
                pipe = subprocess.PIPE
                self.child = os.getpid(), subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
            process = self.child[1]
            assert process.stdin is not None
            assert process.stdout is not None
            answer: dict[str, Any] = {}
            content = b""
            with suppress(OSError, ValueError):  # it is gone, or its answer is cut short
                process.stdin.write(f"{what}\n".encode())
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                content = process.stdout.read(answer.get("bytes", 0))
            if "error" in answer:
                raise InvalidFile(self.path, f"cannot be read as an HDF5 file ({answer['error']})")
            if not answer or len(content) < answer["bytes"]:
                self._end_child()
                self.crashes += 1
                raise InvalidFile(self.path, _CRASHED)
            return np.frombuffer(content, answer["type"]).reshape(answer["shape"])

    def _end_child(self) -> None:
        if self.child is not None and self.child[0] == os.getpid():
            self.child[1].kill()
            self.child[1].communicate()
        self.child = None


def serve(path: Path, name: str) -> None:
    """Answer requests until the input ends; Ctrl-C is for the parent, which may want to read on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out, array = sys.stdout.buffer, None
    for line in sys.stdin:
        try:
            array = _open_array(path, name) if array is None else array
            if line.strip() == "all":
                check_expansion(path, array.nbytes)
                found = np.ascontiguousarray(array[()])
            else:
                size = array.dtype.itemsize * math.prod(array.shape[1:])
                if size > MOST_BYTES:
                    raise ValueError(f"an image of {size / 1e6:,.0f} MB")
                found = np.ascontiguousarray(array[int(line)])
            if found.dtype.kind not in "biuf":
                raise ValueError(f"{name} contains no numbers")
        except Exception as problem:
            answer: dict[str, Any] = {"error": summarise_error(problem)}
            found = np.zeros(0)
        else:
            answer = {"type": found.dtype.str, "shape": found.shape, "bytes": found.nbytes}
        out.write(json.dumps(answer).encode() + b"\n" + found.tobytes())
        out.flush()


def _open_array(path: Path, name: str) -> Any:
    """Open an array; raise ValueError if its values are in other files."""
    import h5py

    file = h5py.File(path, "r")
    found = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise ValueError(f"expected an array {name!r}, stored in this file")
    return found


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
