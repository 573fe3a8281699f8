"""Reader for `torchvision:CIFAR100?root=DIR`. Other arguments of the dataset follow as `&name=value`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.sources.source import Source, SourceSplit
from vitling.errors import UserError, summarise_error
from vitling.loading import MAX_DIGITS

SPLIT_ARGUMENTS = {"train": ("train", "trainval"), "val": ("val", "valid"), "test": ("test",), "pool": ("unlabeled",)}
LABEL_ATTRIBUTES = ("targets", "labels", "_labels")
UNUSABLE = ("LSUN", "VisionDataset")  # the first unpickles a cache beside the images, which can run code; a base class
CLASS_ATTRIBUTES = ("classes", "categories")
MAX_IMAGES = 100_000_000


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
    if kind is None or not inspect.isclass(kind) or name.startswith(UNUSABLE):
        raise UserError(
            f"torchvision has no dataset {name}. Use a class name of torchvision.datasets, such as CIFAR100."
        )
    parameters = inspect.signature(kind.__init__).parameters
    arguments = {key: _parse_value(text) for key, text in parse_qsl(query)}
    if "root" in parameters and "root" not in arguments:
        raise UserError(f"torchvision:{name} needs the folder of its files: torchvision:{name}?root=DIR")
    if "download" in arguments:
        raise UserError(f"torchvision:{spec}: leave out download, and pass --data.download instead.")
    root = arguments.get("root")
    if root is not None and not config.download and not Path(str(root)).is_dir():  # some datasets would create it
        raise UserError(f"torchvision:{name}: there is no folder {root}. Put the files there, or pass --data.download.")
    if "download" in parameters:
        arguments["download"] = config.download
    source = Source(name)
    for split, choices in _list_choices(parameters, arguments).items():
        for choice in choices:
            dataset = _construct(kind, {**arguments, **choice}, split == "train")
            if dataset is not None:
                source.splits[split] = _make_split(dataset, split, source)
                break
    return source


def _parse_value(text: str) -> str | int | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else text


def _list_choices(parameters: Any, arguments: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """List the arguments that may select each split, in the order to try."""
    if "train" in parameters and "train" not in arguments:
        return {"train": [{"train": True}], "test": [{"train": False}]}
    if "split" in parameters and "split" not in arguments:
        return {split: [{"split": word} for word in words] for split, words in SPLIT_ARGUMENTS.items()}
    return {"train": [{}]}


def _construct(kind: Any, arguments: dict[str, Any], needed: bool) -> Any:
    """Construct the dataset; return None if it has no such split."""
    try:
        return kind(**arguments)
    except ValueError:  # raised by torchvision for an unknown split
        return None
    except ImportError as error:
        raise UserError(f"torchvision's {kind.__name__} cannot be used here: {error}.") from None
    except TypeError as error:
        raise UserError(f"torchvision's {kind.__name__} does not accept these arguments: {error}") from None
    except Exception as error:  # its readers check little of what is in the files
        if not needed:
            return None
        raise UserError(
            f"torchvision cannot load {kind.__name__} from {arguments.get('root')} ({summarise_error(error)}). Put the "
            "files there, or pass --data.download."
        ) from None


def _make_split(dataset: Any, name: str, source: Source) -> SourceSplit:
    try:
        return _read_split(dataset, name, source)
    except UserError:
        raise
    except Exception as error:  # it does not check its arguments either
        raise UserError(f"torchvision's {source.name} cannot be read ({summarise_error(error)}).") from None


def _read_split(dataset: Any, name: str, source: Source) -> SourceSplit:
    if (n := len(dataset)) > MAX_IMAGES:
        raise UserError(f"torchvision's {source.name} has {n:,} images; at most {MAX_IMAGES:,} can be read.")
    split = SourceSplit([f"{source.name}/{name}[{i}]" for i in range(n)], TorchvisionReader(dataset), np.arange(n))
    if name == "pool":
        return split
    labels = next((getattr(dataset, a) for a in LABEL_ATTRIBUTES if hasattr(dataset, a)), None)
    values = [dataset[i][1] for i in range(n)] if labels is None else [labels[i] for i in range(n)]
    try:
        numbers = [int(value) for value in values]
    except (TypeError, ValueError):
        raise UserError(
            f"torchvision's {source.name} does not have one class per image, which vitling needs."
        ) from None
    classes = next((getattr(dataset, a) for a in CLASS_ATTRIBUTES if hasattr(dataset, a)), None)
    size = max(numbers, default=-1) + 1
    words = [_join_synonyms(c) for c in classes] if classes and len(classes) >= size else [str(c) for c in range(size)]
    if name == "train":
        source.class_order = tuple(words)
    split.labels = [(words[number],) for number in numbers]
    return split


def _join_synonyms(name: Any) -> str:
    return ", ".join(name) if isinstance(name, tuple) else str(name)
