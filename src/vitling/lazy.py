"""Names that are imported at their first use, so that importing a package costs nothing (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def make_getattr(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose public names live in its modules: {"Store": "store", ...}."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
