"""An npz with images [N, H, W] or [N, H, W, C] and their labels, whole or as train, val and test (like MedMNIST)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.source import SPLIT_OF, Source, SourceSplit, sort_class_names
from vitling.errors import UserError

IMAGE_WORDS = frozenset({"x", "images", "image", "data"})
LABEL_WORDS = frozenset({"y", "labels", "label", "targets"})
WANTED = "Use x and y, or x_train, y_train, x_test, y_test"


class ArrayReader:
    def __init__(self, images: np.ndarray):
        self.images = images

    def __call__(self, row: int) -> np.ndarray:
        image = self.images[row]
        return image if image.ndim == 3 else image[:, :, None]


def read(path: Path, config: DataConfig) -> Source:
    arrays = _load(path)
    images, labels = _by_split(arrays, IMAGE_WORDS), _by_split(arrays, LABEL_WORDS)
    if not images:
        raise UserError(f"{path} has no images (it has: {', '.join(arrays) or 'nothing'}). {WANTED}.")
    found = Source(path.stem)
    names = [str(name) for name in arrays["class_names"].ravel()] if "class_names" in arrays else None
    for split, (name, x) in images.items():
        _check_images(path, name, x)
        part = SourceSplit([f"{name}[{i}]" for i in range(len(x))], ArrayReader(x), np.arange(len(x)))
        if split in labels:
            found.multi |= _has_several(labels[split][1])
            part.labels = _words(path, *labels[split], len(x), names)
        found.splits[split] = part
    train = found.splits.get("train")
    if names:
        found.class_order = tuple(names)
    elif train is not None and train.labels is not None:
        found.class_order = sort_class_names({name for row in train.labels for name in row})
    return found


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise UserError(f"{path} cannot be read as an npz file: {error}") from None
    except Exception as error:  # zipfile and zlib have errors of their own
        raise UserError(f"{path} is damaged: {error}") from None


def _by_split(arrays: dict[str, np.ndarray], words: frozenset[str]) -> dict[str, tuple[str, np.ndarray]]:
    """The arrays whose name is one of `words`, with a split before or after it or none."""
    found = {}
    for name, array in arrays.items():
        parts = name.lower().split("_")
        split = next((SPLIT_OF[part] for part in parts if part in SPLIT_OF), "train")
        if {part for part in parts if part not in SPLIT_OF} <= words and set(parts) & words:
            found[split] = (name, array)
    return found


def _check_images(path: Path, name: str, x: np.ndarray) -> None:
    if x.dtype not in (np.uint8, np.uint16):
        raise UserError(f"{path}: {name} is {x.dtype}. Save the images as uint8 or uint16.")
    if x.ndim not in (3, 4):
        raise UserError(f"{path}: {name} has shape {x.shape}. Images are [N, H, W] or [N, H, W, C].")
    if x.ndim == 4 and x.shape[1] in (1, 3, 4) and x.shape[3] > 4 and x.shape[2] > 4:
        raise UserError(f"{path}: {name} has shape {x.shape}, channels first. Save it as [N, H, W, C].")


def _is_table(y: np.ndarray) -> bool:
    """A column a class."""
    return y.ndim == 2 and y.shape[1] > 1


def _has_several(y: np.ndarray) -> bool:
    """One class an image may be written as a table too (one-hot)."""
    return _is_table(y) and not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())


def _words(path: Path, name: str, y: np.ndarray, n: int, names: list[str] | None) -> list[tuple[str, ...]]:
    if len(y) != n:
        raise UserError(f"{path}: {name} has {len(y):,} labels for {n:,} images.")
    if not _is_table(y):
        y = y.reshape(n)
        return [(_name(path, name, value, names),) for value in y.tolist()]
    if not np.isin(y, (0, 1)).all():
        raise UserError(f"{path}: {name} has shape {y.shape}, so it must hold 0 and 1: a column a class.")
    columns = names or [str(c) for c in range(y.shape[1])]
    if len(columns) != y.shape[1]:
        raise UserError(f"{path}: {name} has {y.shape[1]} columns for {len(columns)} class_names.")
    return [tuple(columns[c] for c in np.flatnonzero(row)) for row in y]


def _name(path: Path, array: str, value: object, names: list[str] | None) -> str:
    if names is None or isinstance(value, str):
        return str(value)
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"{path}: {array} has the label {value}; class_names has {len(names)} names.")
    return names[value]
