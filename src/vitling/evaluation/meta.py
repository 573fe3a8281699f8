"""Metadata of a saved model. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from vitling.data.config import MAX_PIXELS
from vitling.data.dataset import Task
from vitling.errors import UserError
from vitling.version import __version__


@dataclass(frozen=True)
class BundleMeta:
    """How images are prepared (decoded at `store_size`, then a centre crop of `size` px) and what the outputs mean."""

    task: Task
    class_names: tuple[str, ...]
    size: int
    store_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_fraction: float = 0.875
    temperature: float = 1.0
    channels: int = 3
    bits: int = 16  # used in pixels of 16-bit files; 12 for scanners that fill only those
    max_pixels: int = MAX_PIXELS  # larger images are rejected
    version: str = __version__

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BundleMeta:
        known = {f.name for f in fields(cls)}
        missing = {"task", "class_names", "size", "store_size", "mean", "std"} - values.keys()
        if missing:
            raise UserError(f"config.json is incomplete: its vitling section has no {', '.join(sorted(missing))}.")
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        return cls(**kept)
