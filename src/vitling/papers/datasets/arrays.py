"""Readers of datasets whose images are rows of numbers: CIFAR, MNIST, STL-10, SVHN, FER2013, PatchCamelyon."""

from __future__ import annotations

import csv
import gzip
import math
import struct
from pathlib import Path

import numpy as np

from vitling.errors import InvalidFile, UserError
from vitling.loading import check_expansion, open_regular, open_text, read_bytes
from vitling.papers.datasets.files import Copy, pick
from vitling.papers.datasets.hdf5 import H5Reader
from vitling.papers.datasets.lists import load_mat
from vitling.papers.datasets.pickles import read_pickle

IDX_IMAGES, IDX_LABELS = 2051, 2049  # magic numbers of MNIST's files
USAGE = {"Training": "train", "PublicTest": "val", "PrivateTest": "test"}


def read_cifar10(copy: Copy) -> None:
    """Read the Python version (data_batch_1 ..., pickled) or the binary one (data_batch_1.bin ...)."""
    batches = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    if (copy.root / "data_batch_1").exists():
        _read_pickled(copy, batches, _read_names(copy.require("batches.meta"), "label_names"), "labels")
    else:
        _read_binary(copy, batches, copy.read_lines("batches.meta.txt"), label_bytes=1)


def read_cifar100(copy: Copy) -> None:
    """Read the 100 fine classes of the Python version (train, test) or the binary one (train.bin, test.bin)."""
    batches = {"train": ["train"], "test": ["test"]}
    if (copy.root / "meta").exists():
        _read_pickled(copy, batches, _read_names(copy.require("meta"), "fine_label_names"), "fine_labels")
    else:
        _read_binary(copy, batches, copy.read_lines("fine_label_names.txt"), label_bytes=2)  # coarse, fine


def _read_pickled(copy: Copy, batches: dict[str, list[str]], names: list[str], key: str) -> None:
    copy.order_classes(names)
    for split, files in batches.items():
        parts = [_read_batch(copy.require(file), key, len(names)) for file in files]
        images = _to_images(np.concatenate([rows for rows, _ in parts]))
        copy.add_arrays(split, images, [names[c] for _, labels in parts for c in labels])


def _read_names(path: Path, key: str) -> list[str]:
    names = read_pickle(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidFile(path, f"not as it was distributed: {key} is no list of names")
    return names


def _read_batch(path: Path, key: str, classes: int) -> tuple[np.ndarray, list[int]]:
    """Read pixels [N, 3072] and classes [N]."""
    content = read_pickle(path)
    rows, labels = content.get("data"), content.get(key)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
        raise InvalidFile(path, "not as it was distributed: data is no uint8 array [N, 3072]")
    if not isinstance(labels, list) or not all(type(c) is int and 0 <= c < classes for c in labels):
        raise InvalidFile(path, f"not as it was distributed: {key} is no list of numbers below {classes}")
    if len(labels) != len(rows):
        raise InvalidFile(path, f"{len(rows):,} images, but {len(labels):,} labels")
    return rows, labels


def _read_binary(copy: Copy, batches: dict[str, list[str]], names: list[str], label_bytes: int) -> None:
    copy.order_classes(names)
    for split, files in batches.items():
        raw = np.concatenate([_read_uint8(copy.require(f"{file}.bin")) for file in files])
        rows = raw.reshape(-1, label_bytes + 3072)
        labels = [names[c] for c in rows[:, label_bytes - 1]]
        copy.add_arrays(split, _to_images(rows[:, label_bytes:]), labels)


def _read_uint8(path: Path) -> np.ndarray:
    return np.frombuffer(read_bytes(path), np.uint8)


def _to_images(rows: np.ndarray) -> np.ndarray:
    """Turn rows [N, 3072], plane by plane, into images [N, 32, 32, 3]."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def read_mnist(copy: Copy) -> None:
    """Read train-images-idx3-ubyte and the others, with or without .gz."""
    for split, stem in (("train", "train"), ("test", "t10k")):
        images, labels = f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"
        pixels = _read_idx(copy.require(images, f"{images}.gz"), IDX_IMAGES, 3)
        digits = _read_idx(copy.require(labels, f"{labels}.gz"), IDX_LABELS, 1)
        copy.add_arrays(split, pixels, [str(digit) for digit in digits])


def _read_idx(path: Path, magic: int, dimensions: int) -> np.ndarray:
    """Read what the header promises, not what a packed file expands to."""
    with open_regular(path) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
        header = file.read(4 * (1 + dimensions))
        found, *shape = struct.unpack(f">{1 + dimensions}i", header) if len(header) == 4 * (1 + dimensions) else (0,)
        size = math.prod(shape)
        if found == magic and min(shape) >= 0:
            check_expansion(path, size)
            values = file.read(size + 1)
            if len(values) == size:
                return np.frombuffer(values, np.uint8).reshape(shape)
    raise UserError(f"{path} is not a complete IDX file. Copy or unpack it again.")


def read_stl10(copy: Copy) -> None:
    """Read train_X.bin, uint8 [N, 3, 96, 96] with each plane column by column, and train_y.bin, classes from 1.

    The unlabelled images (2.7 GB) stay on disk.
    """
    names = copy.order_classes(copy.read_lines("class_names.txt"))
    for split in ("train", "test"):
        labels = [pick(names, c, first=1) for c in _read_uint8(copy.require(f"{split}_y.bin")).tolist()]
        copy.add_arrays(split, _map_planes(copy.require(f"{split}_X.bin")), labels)
    if (path := copy.root / "unlabeled_X.bin").exists():
        copy.add_arrays("pool", _map_planes(path), None)


def _map_planes(path: Path) -> np.ndarray:
    with open_regular(path) as file:
        return np.memmap(file, np.uint8, "r").reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)


def read_svhn(copy: Copy) -> None:
    """Read train_32x32.mat: X [32, 32, 3, N] and y [N, 1], where 10 is the digit 0. Extra images are not read."""
    for split in ("train", "test"):
        arrays = load_mat(copy.require(f"{split}_32x32.mat"))
        images = np.ascontiguousarray(arrays["X"].reshape(32, 32, 3, -1).transpose(3, 0, 1, 2))
        digits = [pick("01234567890", digit) for digit in np.ravel(arrays["y"]).tolist()]
        copy.add_arrays(split, images, digits)


def read_fer2013(copy: Copy) -> None:
    """Read a table of emotion, pixels (48 x 48 numbers) and Usage; icml_face_data.csv has spaces before the names."""
    path = copy.require("fer2013.csv", "icml_face_data.csv")
    pixels: dict[str, list[np.ndarray]] = {split: [] for split in USAGE.values()}
    names: dict[str, list[str]] = {split: [] for split in USAGE.values()}
    with open_text(path, newline="") as file:
        for number, row in enumerate(csv.DictReader(file, skipinitialspace=True), start=2):
            try:
                split, emotion = USAGE[row["Usage"]], pick(copy.entry.class_names, int(row["emotion"]))
                pixels[split].append(np.array(row["pixels"].split(), np.uint8).reshape(48, 48))
            except (KeyError, IndexError, ValueError, TypeError):
                raise UserError(f"{path}, line {number}: emotion, pixels or Usage is not as distributed.") from None
            names[split].append(emotion)
    for split, images in pixels.items():
        if images:
            copy.add_arrays(split, np.stack(images), names[split])


def read_patchcamelyon(copy: Copy) -> None:
    """Read camelyonpatch_level_2_split_train_x.h5, x [N, 96, 96, 3], and ..._y.h5, y [N, 1, 1, 1]: tumour or not."""
    for split, word in (("train", "train"), ("val", "valid"), ("test", "test")):
        images, labels = (copy.require(f"camelyonpatch_level_2_split_{word}_{kind}.h5") for kind in "xy")
        classes = H5Reader(labels, "y").read_all().ravel().tolist()
        names = [pick(copy.entry.class_names, c) for c in classes]
        copy.add_split(split, [f"{word}[{i}]" for i in range(len(names))], H5Reader(images, "x"), names)
