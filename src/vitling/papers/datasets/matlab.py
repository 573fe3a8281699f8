"""Data sets whose labels, or images too, are in files of MATLAB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.sources.arrays import ArrayReader
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed, words
from vitling.papers.datasets.flower_names import FLOWERS


def flowers102(copy: Copy) -> Source:
    """jpg/image_00001.jpg, the class of each (from 1) in imagelabels.mat, the numbers of each split in setid.mat.

    The names are as distributed: trnid and valid are the small ones, 10 images a class each.
    """
    labels = _load(copy.need("imagelabels.mat"))["labels"].ravel()
    ids = _load(copy.need("setid.mat"))
    found = Source(copy.entry.name, class_order=FLOWERS)
    for part, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        numbers = ids[key].ravel().tolist()
        paths = [f"image_{number:05d}.jpg" for number in numbers]
        found.splits[part] = listed(copy.need("jpg"), paths, words([FLOWERS[labels[n - 1] - 1] for n in numbers]))
    return found


def cars(copy: Copy) -> Source:
    """devkit/: cars_meta.mat names the classes, cars_train_annos.mat has a row an image. The labels of the test images
    were handed out later: cars_test_annos_withlabels.mat."""
    names = [str(name) for name in _load(copy.need("devkit/cars_meta.mat"))["class_names"].ravel()]
    lists = {
        "train": ("cars_train", ("devkit/cars_train_annos.mat",)),
        "test": ("cars_test", _places("cars_test_annos_withlabels.mat", "cars_test_annoswithlabels.mat")),
    }
    found = Source(copy.entry.name, class_order=tuple(names))
    for part, (folder, places) in lists.items():
        rows = np.atleast_1d(_load(copy.need(*places))["annotations"])
        classes = [names[int(row["class"]) - 1] for row in rows]
        found.splits[part] = listed(copy.need(folder), [str(row["fname"]) for row in rows], words(classes))
    return found


def _places(*names: str) -> tuple[str, ...]:
    return tuple(place for name in names for place in (name, f"devkit/{name}"))


def svhn(copy: Copy) -> Source:
    """train_32x32.mat: X [32, 32, 3, N] and y [N, 1], where 10 stands for the digit 0. Extra images are not read."""
    found = Source(copy.entry.name, class_order=tuple(str(digit) for digit in range(10)))
    for part in ("train", "test"):
        arrays = _load(copy.need(f"{part}_32x32.mat"))
        images = np.ascontiguousarray(arrays["X"].reshape(32, 32, 3, -1).transpose(3, 0, 1, 2))
        digits = [str(int(digit) % 10) for digit in np.ravel(arrays["y"])]
        keys = [f"{part}[{i}]" for i in range(len(images))]
        found.splits[part] = SourceSplit(keys, ArrayReader(images), np.arange(len(images)), words(digits))
    return found


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return {key: np.asarray(value) for key, value in loadmat(path, squeeze_me=True).items()}
    except (MatReadError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise UserError(f"{path} cannot be read as a MATLAB file: {error}") from None
