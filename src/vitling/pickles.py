"""A dry run of the pickle in a torch file, to refuse calls whose cost the file's size does not limit.

torch.load(weights_only=True) executes no code of the file, but it calls bytearray, codecs and the types of tensors with
arguments of the file: 50 bytes can ask for any amount of memory, and 200 kB for hours in a codec.
"""

from __future__ import annotations

import pickle
import zipfile
from typing import IO, Any

_CALLED = {  # what a state dict calls; torch refuses names that it does not know
    "collections": ("OrderedDict", "Counter"),
    "builtins": ("set", "complex"),
    "__builtin__": ("set", "complex"),
    "torch": ("Size", "device"),
    "torch.serialization": ("_get_layout",),
    "torch.nn.parameter": ("Parameter",),
}
_LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages


class _Inert:
    """Stands for everything that the file names; it keeps nothing."""

    def __init__(self, *values: Any, **named: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass

    def add(self, value: Any) -> None:
        pass


class _Named(_Inert):
    """Stands for a type that files name but never call, such as that of a storage."""

    def __init__(self, *values: Any, **named: Any):
        raise pickle.UnpicklingError("calls a type")


class _Encoded(_Inert):
    def __init__(self, text: str, encoding: str = ""):
        if encoding != "latin1":  # the only one that pickle writes, for bytes
            raise pickle.UnpicklingError(f"calls the codec {encoding[:20]}")


class _DryRun(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _Encoded
        called = name in _CALLED.get(module, ()) or (module.startswith("torch.") and name.startswith("_rebuild_"))
        return _Inert if called else _Named

    def persistent_load(self, key: Any) -> Any:
        return _Inert()


def check_torch_calls(file: IO[bytes]) -> None:
    """Raise an error if torch should not load the file; UnpicklingError if it calls what a state dict does not."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if name.rpartition("/")[2] == "data.pkl":
                    with archive.open(name) as member:
                        _DryRun(member).load()
    else:
        file.seek(0)
        if file.read(1) != b"\x80":  # every pickle since protocol 2 begins with this
            raise ValueError("neither a zip file nor a pickle")
        file.seek(0)
        for _ in range(_LEGACY_PICKLES):
            _DryRun(file).load()
    file.seek(0)
