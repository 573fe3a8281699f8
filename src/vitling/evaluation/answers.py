"""What a model answered to each image of a split: two runs can then be compared image by image. No torch here."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitling.errors import UserError
from vitling.files import atomic_write

FILE = "answers.npz"


@dataclass(frozen=True)
class Answers:
    keys: np.ndarray  # uint64 [N], of the images' names
    labels: np.ndarray  # int [N], or bool [N, C] for several labels an image
    given: np.ndarray  # the answered class [N], or a score for each [N, C]
    groups: np.ndarray  # int [N]: images of a group are of one thing; without groups each is alone

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def several(self) -> bool:
        return self.labels.ndim == 2

    @property
    def right(self) -> np.ndarray:
        """bool [N], for one label an image."""
        return self.given == self.labels

    def at(self, keys: np.ndarray) -> Answers:
        """For these images, in this order; all of them are there."""
        order = np.argsort(self.keys, kind="stable")
        found = order[np.searchsorted(self.keys[order], keys)]
        return self.take(found)

    def take(self, images: np.ndarray) -> Answers:
        return Answers(*(column[images] for column in vars(self).values()))


def make_answers(
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str], groups: np.ndarray | None = None
) -> Answers:
    given = logits.astype(np.float32) if labels.ndim == 2 else logits.argmax(axis=1).astype(np.int32)
    keys = np.array([_key(name) for name in names], dtype=np.uint64)
    return Answers(keys, labels, given, np.arange(len(keys)) if groups is None else groups)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def save_answers(folder: Path, parts: Mapping[str, Answers]) -> None:
    """`parts` by weights and split: "last/test"."""
    columns = {f"{name}/{key}": value for name, part in parts.items() for key, value in vars(part).items()}
    with atomic_write(folder / FILE) as file:
        np.savez_compressed(file, **columns)


def load_answers(folder: Path) -> dict[str, Answers]:
    path = folder / FILE
    if not path.exists():
        raise UserError(
            f"{folder} has no {FILE}: it is not a finished run of train or finetune, or of an older vitling."
        )
    try:
        with np.load(path) as columns:
            parts = dict.fromkeys(name.rpartition("/")[0] for name in columns.files)
            return {part: _part(columns, part) for part in parts}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as problem:
        raise UserError(
            f"{path} cannot be read: it is damaged ({type(problem).__name__}). `vitling evaluate` can still judge the "
            "model."
        ) from problem


def _part(columns: Mapping[str, np.ndarray], part: str) -> Answers:
    keys, labels, given = (columns[f"{part}/{key}"] for key in ("keys", "labels", "given"))
    of = f"{part}/groups"  # older files have none
    return Answers(keys, labels, given, columns[of] if of in columns else np.arange(len(keys)))
