"""What a model answered to each image of a split: two runs can then be compared image by image. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitling.errors import UserError
from vitling.files import atomic

FILE = "answers.npz"


@dataclass(frozen=True)
class Answers:
    keys: np.ndarray  # uint64 [N], of the images' names
    labels: np.ndarray  # int [N], or bool [N, C] for several labels an image
    given: np.ndarray  # the answered class [N], or a score for each [N, C]

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
        return Answers(self.keys[found], self.labels[found], self.given[found])


def make_answers(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> Answers:
    given = logits.astype(np.float32) if labels.ndim == 2 else logits.argmax(axis=1).astype(np.int32)
    return Answers(np.array([_key(name) for name in names], dtype=np.uint64), labels, given)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def save_answers(folder: Path, parts: Mapping[str, Answers]) -> None:
    """`parts` by weights and split: "last/test"."""
    columns = {f"{name}/{key}": value for name, part in parts.items() for key, value in vars(part).items()}
    with atomic(folder / FILE) as file:
        np.savez_compressed(file, **columns)


def load_answers(folder: Path) -> dict[str, Answers]:
    path = folder / FILE
    if not path.exists():
        raise UserError(
            f"{folder} has no {FILE}: it is not a finished run of train or finetune, or of an older vitling."
        )
    with np.load(path) as columns:
        parts = dict.fromkeys(name.rpartition("/")[0] for name in columns.files)
        return {part: Answers(*(columns[f"{part}/{key}"] for key in ("keys", "labels", "given"))) for part in parts}
