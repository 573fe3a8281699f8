"""Metadata of a saved model. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from vitling.data.config import MAX_PIXELS
from vitling.data.dataset import Task
from vitling.errors import InvalidFile
from vitling.loading import convert
from vitling.ranges import AT_LEAST_1, BITS, CHANNELS, FRACTION_ABOVE_0, MEAN, SIDE, STD, Range, check_ranges
from vitling.version import __version__


@dataclass(frozen=True)
class BundleMeta:
    """Preprocessing of images (decoded at `store_size`, then a centre crop of `size` px) and meaning of the outputs."""

    task: Task
    class_names: tuple[str, ...]
    size: Annotated[int, SIDE]
    store_size: Annotated[int, SIDE]
    mean: Annotated[tuple[float, ...], MEAN]
    std: Annotated[tuple[float, ...], STD]
    crop_fraction: Annotated[float, FRACTION_ABOVE_0] = 0.875
    temperature: Annotated[float, Range(1e-3, 1e3)] = 1.0
    channels: Annotated[int, CHANNELS] = 3
    bits: Annotated[int, BITS] = 16  # used in pixels of 16-bit files; 12 for scanners that fill only those
    max_pixels: Annotated[int, AT_LEAST_1] = MAX_PIXELS  # larger images are rejected
    version: str = __version__

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str | os.PathLike = "config.json") -> BundleMeta:
        """Convert the vitling section of config.json; raise InvalidFile for values that cannot be used."""
        meta: BundleMeta = convert(values, cls, where)
        check_ranges(meta, where=where)
        if not len(meta.mean) == len(meta.std) == meta.channels:
            raise InvalidFile(where, f"expected {meta.channels} numbers, one per channel", "mean, std")
        if (meta.task == "none") != (not meta.class_names):
            raise InvalidFile(where, f"{len(meta.class_names)} names, but the task is {meta.task}", "class_names")
        return meta
