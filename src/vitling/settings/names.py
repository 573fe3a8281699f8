"""The settings of a run by name: dotted, as flags, as JSON; those of a preset, of before and of one start. No torch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.settings.config import PLANNED, Config, MethodsConfig, TrainConfig


def overlaid(preset: Any, asked: Any, default: Any, said: Collection[str] = ()) -> Any:
    """The preset's settings, but those that were asked for: named in `said`, or other than the default."""
    changed = {f.name: getattr(asked, f.name) for f in fields(asked)}
    return replace(preset, **{k: v for k, v in changed.items() if k in said or v != getattr(default, k)})


def all_said(config: Config) -> Config:
    """The same, complete as it is: no preset and no plan changes anything."""
    return replace(config, said=tuple(name for name, _ in leaves(config)))


def named_in(argv: Sequence[str]) -> tuple[str, ...]:
    """The settings that a command line names: --esvit.region-from 9 is esvit.region_from, --no-cache is cache."""
    flags = [word.partition("=")[0][2:].replace("-", "_") for word in argv if word.startswith("--")]
    return tuple(dict.fromkeys(_NEGATED.sub(r"\1", flag) for flag in flags))


_NEGATED = re.compile(r"(^|\.)no_(?=[a-z_]+$)")


# They belong to one start, not to the run. A run that began without --allow-bad may need it for its test split.
_OF_THE_CALL = ("out", "resume", "overwrite", "allow_bad", "said")
_FITTED = ("epochs", "optim.warmup_epochs", "loop.compile")  # by --minutes
_FILLED_IN = (None, PLANNED, "auto")  # when the images are known


def from_plain(kind: type, values: dict[str, Any]) -> Any:
    """A dataclass out of what `asdict` and JSON made of it."""
    hints = get_type_hints(kind)
    return kind(**{f.name: _restore(hints[f.name], values[f.name]) for f in fields(kind) if f.name in values})


def _restore(hint: Any, value: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    return (
        tuple(value)
        if isinstance(value, list) and tuple in (hint, *map(get_origin, (hint, *get_args(hint))))
        else value
    )


def saved_config(kind: type, values: dict[str, Any]) -> Any:
    """Of a run. One of `train` that names no method is of a time when there was one stage; one of two stages that names
    no preset is of a time when that was the paper's, and so with the first stage's of another method than IDMM."""
    if kind is TrainConfig:
        values = {"method": "supervised", **values}
        unsaid = values["method"] != "supervised" and values.get("preset", "auto") == "auto"
        values |= {"preset": "paper"} if unsaid else {}
        if values["method"] not in ("supervised", "idmm"):
            values = {"pretrain_preset": "paper", **values}
    return from_plain(kind, of_its_method(values))


def of_its_method(values: dict[str, Any]) -> dict[str, Any]:
    """Without the settings of other methods, for which something else may be usual by now. Where the method was left
    open, that is so with `esvit.match`."""
    if method := METHODS.get(values.get("method", "")):
        foreign = {f.name for f in fields(MethodsConfig)} - {method.field}
        return {name: value for name, value in values.items() if name not in foreign}
    if "esvit" in values and "esvit.match" not in values.get("said", ()):
        return values | {"esvit": {name: value for name, value in values["esvit"].items() if name != "match"}}
    return values


def with_overrides(config: Any, overrides: dict[str, Any]) -> Any:
    """Sets fields by name; "optim.lr" reaches into a part. Unknown names are errors."""
    known = dict(leaves(config)) | {f.name: getattr(config, f.name) for f in fields(config)}
    for name, value in overrides.items():
        if name not in known:
            near = get_close_matches(name, known, n=3) or [n for n in known if n.endswith(f".{name}")]
            hint = f"Did you mean {' or '.join(near)}?" if near else "`vitling train --help` lists them."
            raise UserError(f"There is no setting {name!r}. {hint}")
        if isinstance(known[name], tuple) and isinstance(value, str):  # one tracker, written without the comma
            value = (value,)
        *path, last = name.split(".")
        owner = config
        for part in path:
            owner = getattr(owner, part)
        object.__setattr__(owner, last, value)  # some parts are frozen
    config.said = (*config.said, *overrides)
    return config


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting."""
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", value


def resumed(asked: Config, saved: Config) -> Config:
    """The saved settings, under which alone a resume is exact. Something else asked for now is an error."""
    before, default = dict(leaves(saved)), dict(leaves(type(asked)()))
    for name, value in leaves(asked):
        unsaid = value == default[name] and (name not in asked.said or value in _FILLED_IN)
        if name in _OF_THE_CALL or unsaid or value == before[name]:
            continue
        if name in _FITTED and saved.minutes is not None:  # what was given was the most
            continue
        raise UserError(
            f"--{flag(name)} {_written(value)} was given, but this run was started with {_written(before[name])}. "
            "--resume continues the same run; use a new --out for other settings."
        )
    saved.out, saved.resume, saved.overwrite = asked.out, True, False
    saved.allow_bad |= asked.allow_bad
    return saved


def as_flags(config: Any, leaving: Collection[str]) -> str:
    """What was said of it on a command line, to be said again."""
    known, words = dict(leaves(config)), []
    for name in config.said:
        name = name if name in known else f"{name}_"
        if name in known and name not in leaving:
            value, (*path, last) = known[name], flag(name).split(".")
            words.append("--" + ".".join([*path, f"no-{last}" if value is False else last]))
            values = [] if isinstance(value, bool) else value if isinstance(value, tuple) else [value]
            words += [shlex.quote(str(one)) for one in values]
    return " ".join(words)


def flag(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _written(value: Any) -> str:
    """As a person writes it behind the flag."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
