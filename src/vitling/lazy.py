"""Lazy imports (PEP 562): the public names of a package are imported on first use, which keeps its import cheap."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def make_getattr(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """Create the `__getattr__` of a package from a mapping of public names to modules: {"Store": "store", ...}."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
