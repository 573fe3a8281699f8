"""`torchvision:CIFAR100?root=DIR`: the data sets that torchvision knows. Other arguments follow with `&name=value`."""

from __future__ import annotations

import inspect
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError

SPLIT_ARGUMENTS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",), "pool": ("unlabeled",)}
LABEL_ATTRIBUTES = ("targets", "labels", "_labels")
CLASS_ATTRIBUTES = ("classes", "categories")


class TorchvisionReader:
    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __call__(self, row: int) -> np.ndarray:
        image = self.dataset[row][0]
        if not isinstance(image, np.ndarray):
            image = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        return image if image.ndim == 3 else image[:, :, None]


def read(spec: str, config: DataConfig) -> Source:
    from torchvision import datasets

    name, _, query = spec.partition("?")
    kind = getattr(datasets, name, None)
    if kind is None or not inspect.isclass(kind):
        raise UserError(f"torchvision has no data set {name}. Its names are written as in torchvision.datasets.")
    takes = inspect.signature(kind.__init__).parameters
    arguments = {key: _value(text) for key, text in parse_qsl(query)}
    if "root" in takes and "root" not in arguments:
        raise UserError(f"Say where the files are: torchvision:{name}?root=DIR")
    if "download" in takes:
        arguments.setdefault("download", config.download)
    found = Source(name)
    for split, choices in _choices(takes, arguments).items():
        for choice in choices:
            dataset = _construct(kind, {**arguments, **choice}, split == "train")
            if dataset is not None:
                found.splits[split] = _part(dataset, split, found)
                break
    return found


def _value(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() else text


def _choices(takes: Any, arguments: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The arguments that may give each split, in the order to try."""
    if "train" in takes and "train" not in arguments:
        return {"train": [{"train": True}], "test": [{"train": False}]}
    if "split" in takes and "split" not in arguments:
        return {split: [{"split": word} for word in words] for split, words in SPLIT_ARGUMENTS.items()}
    return {"train": [{}]}


def _construct(kind: Any, arguments: dict[str, Any], needed: bool) -> Any:
    """The data set, or None where it has no such split."""
    try:
        return kind(**arguments)
    except ValueError:  # how torchvision refuses a split's name
        return None
    except TypeError as error:
        raise UserError(f"torchvision's {kind.__name__} does not take that: {error}") from None
    except (RuntimeError, OSError) as error:
        if not needed:
            return None
        where = arguments.get("root")
        raise UserError(
            f"torchvision finds no {kind.__name__} under {where} ({str(error).splitlines()[0]}). Put the files "
            "there, or allow the download with --data.download."
        ) from None


def _part(dataset: Any, split: str, found: Source) -> SourceSplit:
    n = len(dataset)
    part = SourceSplit([f"{found.name}/{split}[{i}]" for i in range(n)], TorchvisionReader(dataset), np.arange(n))
    if split == "pool":
        return part
    told = next((getattr(dataset, a) for a in LABEL_ATTRIBUTES if hasattr(dataset, a)), None)
    values = [dataset[i][1] for i in range(n)] if told is None else [told[i] for i in range(n)]
    try:
        numbers = [int(value) for value in values]
    except (TypeError, ValueError):
        raise UserError(f"torchvision's {found.name} does not give one class an image, which vitling needs.") from None
    names = next((getattr(dataset, a) for a in CLASS_ATTRIBUTES if hasattr(dataset, a)), None)
    size = max(numbers, default=-1) + 1
    words = [_word(name) for name in names] if names and len(names) >= size else [str(c) for c in range(size)]
    if split == "train":
        found.class_order = tuple(words)
    part.labels = [(words[number],) for number in numbers]
    return part


def _word(name: Any) -> str:
    return ", ".join(name) if isinstance(name, tuple) else str(name)
