"""Settings by dotted name: `optim.lr` on the command line, in Python and in JSON. Imports no torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

from vitling.errors import UserError
from vitling.formatting import join_or
from vitling.settings.config import Config

_NEGATION = re.compile(r"(^|\.)no_(?=[a-z_]+$)")


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of every setting."""
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", value


def flag_name(name: str, value: Any = None) -> str:
    """Return the flag of a setting, without its dashes: `from_` is `from`, `esvit.region_from` `esvit.region-from`, and
    `views.colour` `views.no-colour` to make it False. A switch has only the flag that changes its default."""
    *path, last = name.rstrip("_").replace("_", "-").split(".")
    return ".".join([*path, f"no-{last}" if value is False else last])


def settings_in(argv: Sequence[str]) -> tuple[str, ...]:
    """List the settings that a command line names: --esvit.region-from 9 is esvit.region_from, --no-cache is cache."""
    flags = [word.partition("=")[0][2:].replace("-", "_") for word in argv if word.startswith("--")]
    return tuple(dict.fromkeys(_NEGATION.sub(r"\1", flag) for flag in flags))


def to_flags(config: Any, without: Collection[str]) -> str:
    """Write the explicit settings of a config as command-line flags."""
    known, default, words = dict(leaves(config)), dict(leaves(type(config)())), []
    for name in dict.fromkeys(config.explicit):
        name = name if name in known else f"{name}_"
        if name in known and name not in without:
            value = known[name]
            if isinstance(value, bool) and value == default[name]:
                continue
            words.append(f"--{flag_name(name, value)}")
            values = [] if isinstance(value, bool) else value if isinstance(value, tuple) else [value]
            words += [shlex.quote(str(one)) for one in values]
    return " ".join(words)


def format_flag(name: str, value: Any) -> str:
    """Write a setting as a user types it; a switch, if it is not at its default."""
    text = "" if isinstance(value, bool) else f" {format_value(value)}"
    return f"--{flag_name(name, value)}{text}"


def format_value(value: Any) -> str:
    """Write a value as a user types it behind its flag."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def apply_overrides(config: Any, overrides: dict[str, Any]) -> Any:
    """Set fields by dotted name, as explicit settings; raise UserError for an unknown name."""
    known = dict(leaves(config)) | {f.name: getattr(config, f.name) for f in fields(config)}
    for name, value in overrides.items():
        if name not in known:
            near = get_close_matches(name, known, n=3) or [n for n in known if n.endswith(f".{name}")]
            hint = f"Did you mean {join_or(near)}?" if near else "`vitling train --help-all` lists them."
            raise UserError(f"There is no setting {name!r}. {hint}")
        if isinstance(known[name], tuple) and isinstance(value, str):  # a single tracker, passed without a list
            value = (value,)
        if isinstance(value, float | int | Path) and str in _types_of(config, name):  # val=0.2, from_=Path("runs/a")
            value = str(value)
        config = replace_leaf(config, name, value)
    return replace(config, explicit=(*config.explicit, *overrides)) if hasattr(config, "explicit") else config


def _types_of(config: Any, name: str) -> tuple[Any, ...]:
    """Return the types that a setting may have, by its dotted name."""
    *path, last = name.split(".")
    for part in path:
        config = getattr(config, part)
    hint = get_type_hints(type(config))[last]
    return get_args(hint) or (hint,)


def replace_leaf(config: Any, name: str, value: Any) -> Any:
    """Return the config with one setting replaced, by its dotted name."""
    first, _, rest = name.partition(".")
    return replace(config, **{first: replace_leaf(getattr(config, first), rest, value) if rest else value})


def mark_all_explicit(config: Config) -> Config:
    """Return the config with every setting explicit, so that no preset and no plan changes it."""
    return replace(config, explicit=tuple(name for name, _ in leaves(config)))
