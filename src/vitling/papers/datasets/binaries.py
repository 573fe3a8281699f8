"""Data sets whose images are rows of bytes: CIFAR, MNIST, STL-10."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, words

HARMLESS = {  # all that a pickled array needs: other names could run code
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("_codecs", "encode"),
}
IDX_IMAGES, IDX_LABELS = 2051, 2049


def cifar10(copy: Copy) -> Source:
    """The Python version (data_batch_1 ..., pickled) or the binary one (data_batch_1.bin ...)."""
    batches = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    if (copy.root / "data_batch_1").exists():
        names = _unpickled(copy.need("batches.meta"))["label_names"]
        return _pickled(copy, batches, names, "labels")
    return _binary(copy, batches, copy.lines("batches.meta.txt"), label_bytes=1)


def cifar100(copy: Copy) -> Source:
    """The Python version (train, test, pickled) or the binary one (train.bin, test.bin); the 100 fine classes."""
    batches = {"train": ["train"], "test": ["test"]}
    if (copy.root / "meta").exists():
        return _pickled(copy, batches, _unpickled(copy.need("meta"))["fine_label_names"], "fine_labels")
    return _binary(copy, batches, copy.lines("fine_label_names.txt"), label_bytes=2)  # the coarse one comes first


def mnist(copy: Copy) -> Source:
    """train-images-idx3-ubyte and its like, with or without .gz."""
    found = Source(copy.entry.name, class_order=tuple(str(digit) for digit in range(10)))
    for part, stem in (("train", "train"), ("test", "t10k")):
        images, labels = f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"
        pixels = _idx(copy.need(images, f"{images}.gz"), IDX_IMAGES, 3)
        digits = _idx(copy.need(labels, f"{labels}.gz"), IDX_LABELS, 1)
        found.splits[part] = _part(part, pixels, [str(digit) for digit in digits])
    return found


def stl10(copy: Copy) -> Source:
    """train_X.bin: uint8 [N, 3, 96, 96], each plane column by column; train_y.bin: classes from 1. The unlabelled
    images (2.7 GB) stay on disk."""
    names = copy.lines("class_names.txt")
    found = Source(copy.entry.name, class_order=tuple(names))
    for part in ("train", "test"):
        classes = np.fromfile(copy.need(f"{part}_y.bin"), np.uint8)
        found.splits[part] = _part(part, _planes(copy.need(f"{part}_X.bin")), [names[c - 1] for c in classes])
    if (pool := copy.root / "unlabeled_X.bin").exists():
        found.splits["pool"] = _part("unlabeled", _planes(pool), None)
    return found


def _planes(path: Path) -> np.ndarray:
    return np.memmap(path, np.uint8, "r").reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)


def _pickled(copy: Copy, batches: dict[str, list[str]], names: list[str], key: str) -> Source:
    found = Source(copy.entry.name, class_order=tuple(names))
    for part, files in batches.items():
        read = [_unpickled(copy.need(file)) for file in files]
        images = np.concatenate([batch["data"] for batch in read])
        found.splits[part] = _part(part, _rgb(images), [names[c] for batch in read for c in batch[key]])
    return found


def _binary(copy: Copy, batches: dict[str, list[str]], names: list[str], label_bytes: int) -> Source:
    found = Source(copy.entry.name, class_order=tuple(names))
    for part, files in batches.items():
        raw = np.concatenate([np.fromfile(copy.need(f"{file}.bin"), np.uint8) for file in files])
        rows = raw.reshape(-1, label_bytes + 3072)
        found.splits[part] = _part(part, _rgb(rows[:, label_bytes:]), [names[c] for c in rows[:, label_bytes - 1]])
    return found


def _rgb(rows: np.ndarray) -> np.ndarray:
    """[N, 3072], a plane after the other, as images [N, 32, 32, 3]."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _part(split: str, images: np.ndarray, names: list[str] | None) -> SourceSplit:
    keys = [f"{split}[{i}]" for i in range(len(images))]
    return SourceSplit(keys, ArrayReader(images), np.arange(len(images)), None if names is None else words(names))


def _idx(path: Path, magic: int, dimensions: int) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header = np.frombuffer(raw, ">i4", 1 + dimensions) if len(raw) >= 4 * (1 + dimensions) else np.zeros(1)
    if header[0] != magic or len(raw) != 4 * len(header) + int(np.prod(header[1:])):
        raise UserError(f"{path} is no complete IDX file. Is the copy complete?")
    return np.frombuffer(raw, np.uint8, offset=4 * len(header)).reshape(header[1:])


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _unpickled(path: Path) -> dict[str, Any]:
    """Arrays, lists and text alone: a pickle from elsewhere must not run code."""
    try:
        return _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        raise UserError(f"{path} is not as it was distributed: {error}.") from None
