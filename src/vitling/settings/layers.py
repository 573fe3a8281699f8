"""Settings in layers: every value with its origin and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, get_args

from vitling.settings.config import PLANNED, Config
from vitling.settings.names import leaves, replace_leaf

Layer = Literal["default", "method", "plan", "pace", "explicit"]
"""From weakest to strongest. `method`: the method's recipe for this backbone and these images. `plan`: chosen from the
images and the machine. `pace`: the measured speed, for --minutes. `explicit`: passed by the user."""
_RANK = {layer: rank for rank, layer in enumerate(get_args(Layer))}


@dataclass(frozen=True)
class Origin:
    """Layer of a value, and the reason for it in a few words."""

    layer: Layer = "default"
    reason: str = ""


class Draft(Generic[Config]):
    """A config under construction.

    `set` replaces a value of the same or a weaker layer; `fill` and `plan` replace only an open one (None, "auto"),
    which the user may have passed too; `override` replaces any value.
    """

    def __init__(self, config: Config, origins: Mapping[str, Origin] | None = None):
        self.config = config
        self.origins = {name: Origin("explicit", "passed by you") for name in list_explicit(config)}
        self.origins |= origins or {}

    def get(self, name: str) -> Any:
        value: Any = self.config
        for part in name.split("."):
            value = getattr(value, part)
        return value

    def layer(self, name: str) -> Layer:
        return self.origins.get(name, Origin()).layer

    def is_explicit(self, name: str) -> bool:
        return self.layer(name) == "explicit"

    def list_explicit(self) -> list[str]:
        return [name for name in self.origins if self.is_explicit(name)]

    def set(self, name: str, value: Any, layer: Layer, reason: str) -> bool:
        """Set a value unless a stronger layer has set it; return whether it was set."""
        if _RANK[layer] < _RANK[self.layer(name)]:
            return False
        self.override(name, value, layer, reason)
        return True

    def fill(self, name: str, value: Any, layer: Layer, reason: str) -> None:
        """Set a value that is still open, even an explicit "auto"."""
        if self.is_open(name):
            self.override(name, value, layer, reason)

    def plan(self, name: str, value: Any, reason: str) -> None:
        """Let the plan set a value that is still open."""
        self.fill(name, value, "plan", reason)

    def override(self, name: str, value: Any, layer: Layer, reason: str) -> None:
        """Set a value whatever set it before: --minutes shortens explicit --epochs."""
        self.origins[name] = Origin(layer, reason)
        self.config = replace_leaf(self.config, name, value)

    def is_open(self, name: str) -> bool:
        return self.get(name) in (None, PLANNED, "auto")

    def set_group(self, group: str, values: Any, reason: str) -> None:
        """Let the method set all settings of a nested config."""
        for f in fields(values):
            self.set(f"{group}.{f.name}", getattr(values, f.name), "method", reason)


def list_explicit(config: Any) -> list[str]:
    """Return the settings the user passed: those in `config.explicit`, and those that differ from the defaults."""
    default = dict(leaves(type(config)()))
    known = dict(leaves(config))
    named = {name if name in known else f"{name}_" for name in config.explicit}
    return [n for n, value in known.items() if (n in named or value != default[n]) and n != "explicit"]
