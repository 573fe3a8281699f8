"""PatchCamelyon: patches in HDF5 files, read one by one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, words

CLASSES = ("no tumour", "tumour")


class H5Reader:
    """Row i of the array `x`. Every process opens the file itself: a handle does not survive a fork."""

    def __init__(self, path: Path):
        self.path, self.lock = path, threading.Lock()
        self.opened: tuple[int, Any] | None = None

    def __reduce__(self):
        return H5Reader, (self.path,)

    def __call__(self, row: int) -> np.ndarray:
        with self.lock:
            if self.opened is None or self.opened[0] != os.getpid():
                self.opened = (os.getpid(), _h5py().File(self.path, "r")["x"])
            return np.asarray(self.opened[1][row])


def patchcamelyon(copy: Copy) -> Source:
    """camelyonpatch_level_2_split_train_x.h5: x [N, 96, 96, 3]; ..._y.h5: y [N, 1, 1, 1], whether tumour tissue is in
    the centre. valid is val."""
    found = Source(copy.entry.name, class_order=CLASSES)
    for part, word in (("train", "train"), ("val", "valid"), ("test", "test")):
        images, labels = (copy.need(f"camelyonpatch_level_2_split_{word}_{kind}.h5") for kind in "xy")
        with _h5py().File(labels, "r") as file:
            classes = np.asarray(file["y"]).ravel().astype(int)
        keys = [f"{word}[{i}]" for i in range(len(classes))]
        found.splits[part] = SourceSplit(
            keys, H5Reader(images), np.arange(len(classes)), words([CLASSES[c] for c in classes])
        )
    return found


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError("PatchCamelyon is read by h5py, which is not here: pip install 'vitling[hdf5]'") from None
    return h5py
