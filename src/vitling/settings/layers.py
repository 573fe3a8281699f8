"""Settings in layers: every value with its origin and the reason for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, get_args

from vitling.settings.config import PLANNED, Config
from vitling.settings.names import leaves, replace_leaf

Origin = Literal["default", "method", "plan", "pace", "explicit"]
"""From weakest to strongest. `method`: the method's recipe for this backbone and these images. `plan`: chosen from the
images and the machine. `pace`: the measured speed, for --minutes. `explicit`: passed by the user."""
_RANK = {origin: rank for rank, origin in enumerate(get_args(Origin))}


@dataclass(frozen=True)
class Source:
    """Origin of a value, and the reason for it in a few words."""

    origin: Origin = "default"
    reason: str = ""


class Draft(Generic[Config]):
    """A config under construction: a value is replaced only by one of the same or of a stronger origin."""

    def __init__(self, config: Config, sources: Mapping[str, Source] | None = None):
        self.config = config
        self.sources = {name: Source("explicit", "passed by you") for name in explicit_names(config)}
        self.sources |= sources or {}

    def get(self, name: str) -> Any:
        value: Any = self.config
        for part in name.split("."):
            value = getattr(value, part)
        return value

    def origin(self, name: str) -> Origin:
        return self.sources.get(name, Source()).origin

    def is_explicit(self, name: str) -> bool:
        return self.origin(name) == "explicit"

    def set(self, name: str, value: Any, origin: Origin, reason: str) -> bool:
        """Set a value unless a stronger origin has set it; return whether it was set."""
        if _RANK[origin] < _RANK[self.origin(name)]:
            return False
        self.override(name, value, origin, reason)
        return True

    def fill(self, name: str, value: Any, origin: Origin, reason: str) -> None:
        """Set a value that is still open, whoever left it open."""
        if self.is_open(name):
            self.override(name, value, origin, reason)

    def override(self, name: str, value: Any, origin: Origin, reason: str) -> None:
        """Set a value whatever set it before: --minutes shortens explicit --epochs."""
        self.sources[name] = Source(origin, reason)
        self.config = replace_leaf(self.config, name, value)

    def is_open(self, name: str) -> bool:
        return self.get(name) in (None, PLANNED, "auto")

    def set_group(self, group: str, values: Any, origin: Origin, reason: str, only: Iterable[str] = ()) -> None:
        """Set all settings of a nested config, or those named in `only`."""
        for name in only or (f.name for f in fields(values)):
            self.set(f"{group}.{name}", getattr(values, name), origin, reason)


def explicit_names(config: Any) -> list[str]:
    """Return the settings the user passed: those in `config.explicit`, and those that differ from the defaults."""
    default = dict(leaves(type(config)()))
    known = dict(leaves(config))
    named = {name if name in known else f"{name}_" for name in config.explicit}
    return [n for n, value in known.items() if (n in named or value != default[n]) and n != "explicit"]
