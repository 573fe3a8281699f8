"""The settings of a resolved stage as rows, for --explain and the report. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vitling.methods import METHODS
from vitling.settings.config import RunConfig
from vitling.settings.layers import Origin
from vitling.settings.names import flag_name, format_value, leaves
from vitling.settings.resolve import Resolved
from vitling.settings.stages import name_in_train

_HIDDEN = ("source", "out", "resume", "overwrite", "explain", "report", "explicit", "store_least", "labels_hash")


class SettingRow(NamedTuple):
    flag: str  # without its dashes; of a switch, the one that changes its default
    value: str  # on or off for a switch; empty if there is none
    origin: Origin
    is_default: bool
    is_switch: bool


def list_settings(resolved: Resolved, is_first: bool = False) -> Iterator[SettingRow]:
    """List the settings of a stage under the flags that set them; `is_first`: before a second stage of `train`."""
    default, unused = dict(leaves(type(resolved.config)())), _find_unused(resolved.config)
    for name, value in leaves(resolved.config):
        if name not in _HIDDEN and name.partition(".")[0] not in unused:
            origin = resolved.origins.get(name, Origin())
            is_default, is_switch = value == default[name], isinstance(value, bool)
            switch = not default[name] if is_switch else None
            flag = flag_name(name_in_train(name) if is_first else name, switch)
            text = ("off" if is_default else "on") if is_switch else "" if value is None else format_value(value)
            yield SettingRow(flag, text, origin, is_default, is_switch)


def _find_unused(config: RunConfig) -> set[str | None]:
    """Return the groups of settings that this run does not use: other methods, an auxiliary loss that is off."""
    method = METHODS.get(getattr(config, "method", ""))
    others = {m.field for m in METHODS.values() if m is not method}
    return others | ({"drloc"} if config.aux == "none" else set())
