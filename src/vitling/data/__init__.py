"""Data: sources, splits, inspection, decoding and the pixel store. Importing this package imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.lazy import make_getattr

if TYPE_CHECKING:
    from vitling.data.config import DataConfig as DataConfig
    from vitling.data.dataset import BadFile as BadFile
    from vitling.data.dataset import Dataset as Dataset
    from vitling.data.dataset import Splits as Splits
    from vitling.data.inspection import inspect as inspect
    from vitling.data.splits import open as open
    from vitling.data.store import Store as Store
    from vitling.data.store import build_store as build_store

_MODULES = {
    "BadFile": "dataset",
    "DataConfig": "config",
    "Dataset": "dataset",
    "Splits": "dataset",
    "Store": "store",
    "build_store": "store",
    "inspect": "inspection",
    "open": "splits",
}
__getattr__ = make_getattr(__name__, _MODULES)
