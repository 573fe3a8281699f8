"""Reader for npz files: images [N, H, W] or [N, H, W, C] and labels, in one split or several (like MedMNIST)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.source import SPLIT_OF, Source, SourceSplit, drop_empty_labels, sort_class_names
from vitling.errors import UserError
from vitling.loading import read_npz

IMAGE_WORDS = frozenset({"x", "images", "image", "data"})
LABEL_WORDS = frozenset({"y", "labels", "label", "targets"})


class ArrayReader:
    def __init__(self, images: np.ndarray):
        self.images = images

    def __call__(self, row: int) -> np.ndarray:
        image = self.images[row]
        return image if image.ndim == 3 else image[:, :, None]


def read(path: Path, config: DataConfig) -> Source:
    arrays = read_npz(path)
    images, labels = _select_by_split(arrays, IMAGE_WORDS), _select_by_split(arrays, LABEL_WORDS)
    if not images:
        has = ", ".join(arrays) or "nothing"
        raise UserError(f"{path} has no images (it has: {has}). Name the arrays x and y, or x_train, y_train, ...")
    source = Source(path.stem)
    names = [str(name) for name in arrays["class_names"].ravel()] if "class_names" in arrays else None
    for split, (name, x) in images.items():
        _check_images(path, name, x)
        source.splits[split] = SourceSplit([f"{name}[{i}]" for i in range(len(x))], ArrayReader(x), np.arange(len(x)))
        if split in labels:
            source.multi |= _is_multi_label(labels[split][1])
            source.splits[split].labels = _name_labels(path, *labels[split], len(x), names)
    drop_empty_labels(source)
    train = source.splits.get("train")
    if names:
        source.class_order = tuple(names)
    elif train is not None and train.labels is not None:
        source.class_order = sort_class_names({name for row in train.labels for name in row})
    return source


def _select_by_split(arrays: dict[str, np.ndarray], words: frozenset[str]) -> dict[str, tuple[str, np.ndarray]]:
    """Select arrays named by one of `words`, alone or with a split before or after it."""
    selected = {}
    for name, array in arrays.items():
        name_words = name.lower().split("_")
        split = next((SPLIT_OF[word] for word in name_words if word in SPLIT_OF), "train")
        if {word for word in name_words if word not in SPLIT_OF} <= words and set(name_words) & words:
            selected[split] = (name, array)
    return selected


def _check_images(path: Path, name: str, x: np.ndarray) -> None:
    if x.dtype not in (np.uint8, np.uint16):
        raise UserError(f"{path}: {name} is {x.dtype}. Save the images as uint8 or uint16.")
    if x.ndim not in (3, 4) or 0 in x.shape[1:]:
        raise UserError(f"{path}: {name} has shape {x.shape}. Images are [N, H, W] or [N, H, W, C].")
    if x.ndim == 4 and x.shape[1] in (1, 3, 4) and x.shape[3] > 4 and x.shape[2] > 4:
        raise UserError(f"{path}: {name} has shape {x.shape}, channels first. Save it as [N, H, W, C].")


def _is_table(y: np.ndarray) -> bool:
    """Return whether there is one column per class."""
    return y.ndim == 2 and y.shape[1] > 1


def _is_multi_label(y: np.ndarray) -> bool:
    """Return whether images can have several labels; a one-hot table gives one class per image."""
    return _is_table(y) and y.dtype.kind in "biuf" and not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all())


def _name_labels(path: Path, name: str, y: np.ndarray, n: int, names: list[str] | None) -> list[tuple[str, ...]]:
    if y.dtype.kind not in "biufUS" or y.ndim not in (1, 2):
        raise UserError(
            f"{path}: {name} has type {y.dtype} and shape {y.shape}. Labels are numbers or text, [N] or [N, C]."
        )
    if len(y) != n:
        raise UserError(f"{path}: {name} has {len(y):,} labels for {n:,} images.")
    if not _is_table(y):
        if y.size != n:
            raise UserError(f"{path}: {name} has shape {y.shape} for {n:,} images.")
        y = y.reshape(n)
        return [() if value != value else (_name_class(path, name, value, names),) for value in y.tolist()]  # NaN
    if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
        raise UserError(
            f"{path}: {name} has shape {y.shape}, so it must be a table of 0 and 1 with one column per class."
        )
    columns = names or [str(c) for c in range(y.shape[1])]
    if len(columns) != y.shape[1]:
        raise UserError(f"{path}: {name} has {y.shape[1]} columns, but class_names has {len(columns)} names.")
    return [tuple(columns[c] for c in np.flatnonzero(row)) for row in y]


def _name_class(path: Path, array: str, value: object, names: list[str] | None) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if names is None or isinstance(value, str):
        return str(value)
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"{path}: {array} has the label {value}, but class_names has {len(names)} names.")
    return names[value]
