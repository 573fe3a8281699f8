"""The flags of a command, read from its signature and docstrings: for the short help, docs/flags.md and messages.

tyro parses the flags and prints `--help-all`. Its own list of them is not public, so this module reads the same
annotations again.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional, Suppress

from vitling.ranges import Range

_METAVARS = {int: "INT", float: "FLOAT", str: "STR"}


@dataclass(frozen=True)
class Flag:
    """A flag, or a positional argument: its name then has no dashes."""

    name: str  # as typed: --optim.lr, --no-cache, DATA
    metavar: str  # "" for a switch and a positional argument
    help: str  # one paragraph
    default: str  # "(default: 100)", or what the annotation says instead
    group: str  # what the dots in the name begin with: "optim"; "" for the command's own
    kind: type = str  # of one value: bool for a switch
    choices: tuple[str, ...] = ()
    values: int | None = 1  # None: one or more
    ranges: tuple[Range, ...] = ()
    group_help: str = field(default="", compare=False)  # the same group may be described differently elsewhere

    @property
    def usage(self) -> str:
        return f"{self.name} {self.metavar}".rstrip()


def list_flags(command: Callable[..., Any]) -> list[Flag]:
    """List the flags of a command, its own before those of groups."""
    flags = [flag for name, hint, default, doc in _parameters(command) for flag in _expand(name, hint, default, doc)]
    return sorted(flags, key=lambda flag: flag.group != "")


def describe_command(command: Callable[..., Any]) -> str:
    """Return the docstring of a command without its arguments."""
    return inspect.cleandoc(command.__doc__ or "").partition("\nArgs:")[0].strip()


def _parameters(command: Callable[..., Any]) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield name, annotation, default and docstring of each parameter."""
    hints, docs = get_type_hints(command, include_extras=True), _read_arguments(command)
    for name, parameter in inspect.signature(command).parameters.items():
        yield name, hints[name], parameter.default, docs.get(name, "")


def _expand(name: str, hint: Any, default: Any, doc: str, prefix: str = "", group_help: str = "") -> Iterator[Flag]:
    base, extras = _unwrap(hint)
    if Suppress in extras:
        return
    own = _read_option(extras, "name")
    name = name.rstrip("_").replace("_", "-") if own is None else own
    if not (is_dataclass(base) and isinstance(base, type)):
        yield replace(_make_flag(prefix, name, base, extras, default, doc), group_help=group_help)
        return
    below, about = (f"{prefix}{name}.", doc or _flatten(base.__doc__ or "")) if name else (prefix, group_help)
    hints, docs = get_type_hints(base, include_extras=True), _read_fields(base)
    for f in fields(base):
        value = getattr(default, f.name) if is_dataclass(default) else _default_of(f)
        yield from _expand(f.name, hints[f.name], value, docs.get(f.name, ""), below, about)


def _make_flag(prefix: str, name: str, base: Any, extras: tuple[Any, ...], default: Any, doc: str) -> Flag:
    metavar, hint = (_read_option(extras, key) for key in ("metavar", "help_behavior_hint"))
    kind, choices, values = _read_type(base)
    if kind is bool:
        name, metavar = f"no-{name}" if default is True else name, ""
    if metavar is None:
        one = "{" + ",".join(choices) + "}" if choices else _METAVARS[kind]
        metavar = f"{one} ..." if values is None else " ".join([one] * values)
    if hint is None:
        required = default is inspect.Parameter.empty
        is_off = default is None or default is False or default == ()
        hint = "(required)" if required else "" if is_off else f"(default: {_format(default)})"
    if Positional in extras:
        return Flag(metavar, "", doc, hint, "", kind, choices, values)
    ranges = tuple(extra for extra in extras if isinstance(extra, Range))
    return Flag(f"--{prefix}{name}", metavar, doc, hint, prefix.rstrip("."), kind, choices, values, ranges)


def _read_type(base: Any) -> tuple[type, tuple[str, ...], int | None]:
    """Return the type of a value, its choices, and the number of values (None: any)."""
    if get_origin(base) in (Union, types.UnionType):
        base = next(kind for kind in get_args(base) if kind is not type(None))
    values: int | None = 0 if base is bool else 1
    if get_origin(base) is tuple:
        values = None if ... in get_args(base) else len(get_args(base))
        base = get_args(base)[0]
    if get_origin(base) is Literal:
        return str, get_args(base), values
    return base, (), values


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    extras: tuple[Any, ...] = ()
    while get_origin(hint) is Annotated:
        hint, *own = get_args(hint)
        extras += tuple(own)
    return hint, extras


def _read_option(extras: tuple[Any, ...], name: str) -> Any:
    """Return an option of `tyro.conf.arg`, or None if it is not set."""
    return next((value for extra in extras if (value := getattr(extra, name, None)) is not None), None)


def _default_of(f: Field) -> Any:
    if f.default is not MISSING:
        return f.default
    return inspect.Parameter.empty if f.default_factory is MISSING else f.default_factory()


def _format(value: Any) -> str:
    return " ".join(map(_format, value)) if isinstance(value, tuple) else str(value)


@cache
def _read_fields(kind: type) -> dict[str, str]:
    """Read the docstrings below the fields of a dataclass and its bases."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # made by `make_dataclass`, or `object`
            continue
        (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        for one, doc in pairwise(body):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(doc, ast.Expr):
                docs[one.target.id] = _flatten(ast.literal_eval(doc.value))
    return docs


def _read_arguments(command: Callable[..., Any]) -> dict[str, str]:
    """Read the section `Args:` of a docstring."""
    _, _, section = inspect.cleandoc(command.__doc__ or "").partition("\nArgs:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: _flatten(text) for name, text in entries}


def _flatten(text: str) -> str:
    return " ".join(text.split())
