"""Features of a suite's dataset, kept in a file until every probe has used them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vitling.errors import InvalidFile
from vitling.evaluation.probe_features import FrozenFeatures
from vitling.evaluation.probes import SplitFeatures
from vitling.files import atomic_write
from vitling.loading import parse_json, read_safetensors
from vitling.records import FeaturesOrigin

_SPLITS = ("train", "validation", "judged")
_PARTS = ("labels", "pooled", "blocks")


@dataclass(frozen=True)
class DatasetFeatures:
    """Features of the three splits that a probe needs, and where they come from."""

    origin: FeaturesOrigin
    splits: dict[str, SplitFeatures]


def save_features(path: Path, features: DatasetFeatures) -> None:
    tensors: dict[str, Tensor] = {}
    for name, split in features.splits.items():
        tensors |= {f"{name}.{part}": value for part, value in zip(_PARTS, (split.labels, *split.frozen), strict=True)}
    stored = {name: value.cpu().contiguous() for name, value in tensors.items()}
    with atomic_write(path) as file:
        file.write(save(stored, {"origin": json.dumps(features.origin)}))


def load_features(path: Path, device: torch.device) -> DatasetFeatures | None:
    """Load stored features; return None if the file is missing or damaged, so that they are computed again."""
    if not path.exists():
        return None
    try:
        tensors = read_safetensors(path)
        with safe_open(path, "pt") as file:
            origin = parse_json((file.metadata() or {}).get("origin", ""), FeaturesOrigin, path)
    except InvalidFile:
        return None
    if tensors.keys() != {f"{name}.{part}" for name in _SPLITS for part in _PARTS}:
        return None
    splits = {}
    for name in _SPLITS:
        labels, *frozen = (tensors[f"{name}.{part}"].to(device) for part in _PARTS)
        splits[name] = SplitFeatures(None, FrozenFeatures(*frozen), labels)
    return DatasetFeatures(origin, splits) if _fits(splits, len(origin["class_names"])) else None


def _fits(splits: dict[str, SplitFeatures], classes: int) -> bool:
    """Return whether the splits have the same features, and labels of these classes."""
    kinds = set()
    for split in splits.values():
        count = len(split.labels) if split.labels.ndim else 0
        if not count or not _are_labels(split.labels, classes):
            return False
        for part in split.frozen:
            if part.ndim != 2 or len(part) != count or not part.is_floating_point():
                return False
        kinds.add((split.labels.ndim, *((part.shape[1], part.dtype) for part in split.frozen)))
    return len(kinds) == 1


def _are_labels(labels: Tensor, classes: int) -> bool:
    """Return whether labels are class numbers, or one bool per class for several labels per image."""
    if labels.ndim == 2:
        return labels.dtype == torch.bool and labels.shape[1] == classes
    return labels.dtype == torch.int64 and bool(((labels >= 0) & (labels < classes)).all())
