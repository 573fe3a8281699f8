"""Messages for mistyped flags and values: what was given, what is allowed, and the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any

from vitling.commands.flag_docs import Flag, list_flags
from vitling.errors import UserError
from vitling.formatting import join_or

_SYNONYMS = {  # names from other tools
    "plan": "explain",
    "dry-run": "explain",
    "batch-size": "batch",
    "img-size": "size",
    "image-size": "size",
    "imgsz": "size",
    "learning-rate": "optim.lr",
    "lr": "optim.lr",
    "weight-decay": "optim.weight-decay",
    "model": "backbone",
    "output": "out",
    "output-dir": "out",
    "project": "out",
    "force": "overwrite",
    "device": "loop.device",
    "amp": "loop.precision",
    "pretrained": "from",
    "checkpoint": "from",
    "onnx": "format",
}
_NUMBERS = {int: "a whole number", float: "a number"}


def check_flags(argv: Sequence[str], command: Callable[..., Any]) -> None:
    """Raise UserError for a missing argument, an unknown flag, and a value of the wrong kind or out of range."""
    listed = list_flags(command)
    flags = {flag.name: flag for flag in listed}
    for name, values in _read(argv):
        if name not in flags and name != "--help":
            raise UserError(f"There is no flag {name}.{_suggest(name, flags)}")
        if name in flags:
            if len(values) < (flags[name].values or 0):
                raise UserError(f"{flags[name].usage}: the value is missing.")
            for value in values[: flags[name].values]:
                _check_value(flags[name], value)
    if "--help" not in dict(_read(argv)):
        _check_arguments(argv, listed, command.__name__.rstrip("_").replace("_", "-"))


def suggest_name(given: str, names: Iterable[str]) -> str:
    """Return " Did you mean X?" for the nearest names; "" if none is near."""
    near = get_close_matches(given, list(names), n=3)
    return f" Did you mean {join_or(near)}?" if near else ""


def _read(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words up to the next; a positional argument after a flag counts as one of them."""
    name, values = "", list[str]()
    for word in argv:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, values
        name, _, value = word.partition("=")
        name, values = name.replace("_", "-"), [value] if "=" in word else []
    if name:
        yield name, values


def _check_arguments(argv: Sequence[str], flags: Sequence[Flag], verb: str) -> None:
    """Raise UserError for required arguments that are missing, and for more than there can be."""
    by_name, typed = {flag.name: flag for flag in flags}, list(_read(argv))
    given = list(takewhile(lambda word: not word.startswith("--"), argv))
    for name, values in typed:  # words after a flag are its values first
        taken = by_name[name].values
        given += [] if taken is None else values[taken:]
    positional = [flag for flag in flags if not flag.name.startswith("--")]
    required = [flag for flag in flags if flag.default == "(required)"]
    if "--explain" in by_name:  # which needs no --out; without it the command asks for what is missing
        required = [flag for flag in required if flag in positional]
    missing = [flag.name.removesuffix(" ...") for flag in positional[len(given) :] if flag in required]
    missing += [flag.name for flag in required if flag not in positional and flag.name not in dict(typed)]
    call = f"vitling {verb}"
    if missing:
        shown = [*positional, *(flag for flag in required if flag not in positional)]
        words = " ".join(flag.usage for flag in shown)
        raise UserError(f"Missing: {', '.join(missing)}. Type `{call} {words}`; `{call} --help` explains them.")
    if len(given) > len(positional) and all(flag.values == 1 for flag in positional):
        raise UserError(f"{given[len(positional)]} is one argument too many. `{call} --help` shows what it takes.")


def _check_value(flag: Flag, value: str) -> None:
    if flag.name == "--out" and not value.strip():
        raise UserError("--out is empty; name a file or a directory.")
    if flag.choices and value not in flag.choices:
        near = suggest_name(value, flag.choices)
        raise UserError(f"{flag.name} {value}: choose from {', '.join(flag.choices)}.{near}")
    if flag.kind in _NUMBERS:
        try:
            number = flag.kind(value)
        except ValueError:
            raise UserError(f"{flag.name} {value}: must be {_NUMBERS[flag.kind]}.") from None
        if wrong := next((limits for limits in flag.ranges if number not in limits), None):
            raise UserError(wrong.explain(flag.name, number))


def _suggest(name: str, flags: Iterable[str]) -> str:
    known = list(flags)
    other = f"--{_SYNONYMS.get(name[2:], '')}"
    if other in known:
        return f" Use {other}."
    last = [flag for flag in known if flag.endswith(f".{name[2:]}")]  # --clip is --optim.clip
    near = get_close_matches(name, known, n=3) or last[:3]
    return f" Did you mean {' or '.join(near)}?" if near else " `--help-all` lists all flags of a command."
