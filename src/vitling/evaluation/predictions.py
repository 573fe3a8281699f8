"""Predictions for each image of a split, saved so that runs can be compared image by image. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitling.errors import InvalidFile, UserError
from vitling.files import atomic_write
from vitling.loading import read_npz

FILE = "answers.npz"


@dataclass(frozen=True)
class SplitPredictions:
    """Predictions for one split; the fields are the columns of the file."""

    keys: np.ndarray  # uint64 [N], hashes of the images' names
    labels: np.ndarray  # int [N], or bool [N, C] for several labels per image
    given: np.ndarray  # the predicted class [N], or a score for each class [N, C]
    groups: np.ndarray  # int [N]; images of a group show the same thing. Without groups, each image is its own

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def correct(self) -> np.ndarray:
        """Correct predictions, bool [N]; for one label per image."""
        return self.given == self.labels

    def select(self, keys: np.ndarray) -> SplitPredictions:
        """Return the predictions for these images, in this order; all of them must be present."""
        order = np.argsort(self.keys, kind="stable")
        return self.take(order[np.searchsorted(self.keys[order], keys)])

    def take(self, rows: np.ndarray) -> SplitPredictions:
        return SplitPredictions(*(column[rows] for column in vars(self).values()))


def make_predictions(
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str], groups: np.ndarray | None = None
) -> SplitPredictions:
    given = logits.astype(np.float32) if labels.ndim == 2 else logits.argmax(axis=1).astype(np.int32)
    keys = hash_names(names)
    return SplitPredictions(keys, labels, given, np.arange(len(keys)) if groups is None else groups)


def hash_names(names: Sequence[str]) -> np.ndarray:
    """Hash the names of images to the keys that the file stores."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def save_predictions(folder: Path, parts: Mapping[str, SplitPredictions]) -> None:
    """Write `parts`, named by weights and split: "last/test"."""
    columns = {f"{name}/{key}": value for name, part in parts.items() for key, value in vars(part).items()}
    with atomic_write(folder / FILE) as file:
        np.savez_compressed(file, **columns)


def load_predictions(folder: Path) -> dict[str, SplitPredictions]:
    path = folder / FILE
    if not path.exists():
        raise UserError(
            f"{folder} has no {FILE}. Pass a finished run of train or finetune; older versions saved no predictions."
        )
    try:
        columns = read_npz(path)
        parts = dict.fromkeys(name.rpartition("/")[0] for name in columns)
        return {part: _read_part(columns, part) for part in parts}
    except (InvalidFile, ValueError, KeyError, TypeError) as problem:
        reason = str(problem).rstrip(".") if isinstance(problem, InvalidFile) else f"{path} is damaged"
        raise UserError(f"{reason}. `vitling evaluate` can still evaluate the model.") from problem


def _read_part(columns: Mapping[str, np.ndarray], part: str) -> SplitPredictions:
    keys, labels, given = (columns[f"{part}/{key}"] for key in ("keys", "labels", "given"))
    groups = f"{part}/groups"  # files of older versions have none
    found = SplitPredictions(keys, labels, given, columns[groups] if groups in columns else np.arange(len(keys)))
    numbers = all(column.dtype.kind in "biuf" for column in vars(found).values())
    same = {len(column) for column in vars(found).values()} == {len(keys)}
    if not numbers or not same or keys.dtype != np.uint64 or keys.ndim != 1 or labels.shape != given.shape:
        raise ValueError("the columns do not fit each other")
    if labels.ndim not in (1, 2) or found.groups.ndim != 1:
        raise ValueError("the columns have another shape")
    return found
