"""`--help`: the main flags, grouped, on one screen. `--help-all` lists the others."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable
from typing import Any

from vitling.commands.flag_docs import Flag, describe_command, list_flags

MAX_WIDTH = 100  # columns
_COLUMN = 22  # columns of the flags
_OUTPUT = {"Images and output": "DATA --out --val --resume --overwrite --allow-bad"}
_LENGTH = "--minutes --epochs --batch --size"
_MACHINE = {"Machine": "--loop.device --store"}
_CHECKS = {"Repeat and check": "--seed --seeds --explain", **_MACHINE}

# Commands that are not listed have few flags: their help shows all.
SHORT: dict[str, dict[str, str]] = {
    "train": {
        **_OUTPUT,
        "Method and network": "--method --backbone --from --aux",
        "Length and size": "--minutes --epochs --pretrain-epochs --batch --size --test-size",
        **_CHECKS,
    },
    "pretrain": {
        **_OUTPUT,
        "Method and network": "--method --preset --backbone --from --aux",
        "Length and size": _LENGTH,
        "Repeat and check": "--seed --seeds --explain --on-collapse",
        **_MACHINE,
    },
    "finetune": {
        **_OUTPUT,
        "Start": "--from --keep-head --backbone",
        "Length and size": f"{_LENGTH} --test-size",
        "Learning": "--preset --optim.lr --views.policy --aux",
        **_CHECKS,
    },
    "detect": {
        **_OUTPUT,
        "Model": "--from --backbone --model --preset",
        "Length and size": _LENGTH,
        **_CHECKS,
    },
    "segment": {
        **_OUTPUT,
        "Model": "--from --backbone --preset --freeze",
        "Length and size": _LENGTH,
        **_CHECKS,
    },
    "compare-methods": {
        **_OUTPUT,
        "Comparison": "--methods --minutes --backbone --size --batch --seed",
        **_MACHINE,
    },
    "evaluate": {
        "Model and images": "RUN DATA --split --weights --size --allow-bad --device",
        "Output": "--out --mistakes --coverage",
        "Probes of the frozen features": "--with --metric --val --seed --knn.k --few-shot.shots",
    },
    "suite": {
        "Models and data": "RUN --data-root --table --only --weights",
        "Probes and output": "--with --out --device --allow-bad",
    },
    "inspect": {"Images and output": "DATA --out --data.channels --data.label-column --annotations.format"},
    "embed": {"Model and images": "RUN IMAGES --out --weights --data.label-column"},
    "show-views": {"Images and output": "DATA --policy --out --images --draws --boxes --size --seed"},
}


def format_short_help(verb: str, command: Callable[..., Any]) -> str:
    """Format the help of a command: the flags in SHORT in a line each, or all flags in full if it has few."""
    width = min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 0)).columns) - 1
    flags = list_flags(command)
    arguments = [flag.name for flag in flags if not flag.name.startswith("-")]
    lines = [f"usage: vitling {' '.join([verb, *arguments])} [flags]", ""]
    for paragraph in describe_command(command).split("\n\n"):
        lines += [*textwrap.wrap(paragraph, width), ""]
    if verb not in SHORT:
        return "\n".join([*lines, "Flags", *(line for flag in flags for line in _format_flag(flag, flag.help, width))])
    by_name = {flag.name.removesuffix(" ..."): flag for flag in flags}
    chosen = {title: [by_name[name] for name in names.split()] for title, names in SHORT[verb].items()}
    for title, group in chosen.items():
        lines.append(title)
        for flag in group:
            lines += _format_flag(flag, _shorten(flag.help, width - _COLUMN - 4), width)
    more = len(flags) - sum(map(len, chosen.values()))
    return "\n".join([*lines, "", f"{more} more flags: vitling {verb} --help-all, or docs/flags.md"])


def _format_flag(flag: Flag, text: str, width: int) -> list[str]:
    """Format a flag; one that is too long for its column is cut to its name, or gets a separate line."""
    usage, room = flag.usage, width - _COLUMN - 4
    if len(usage) > _COLUMN and text != flag.help:  # the command that the text names lists the choices
        usage = f"{flag.name} {'...' if flag.values is None else 'NAME'}"
    lines = textwrap.wrap(text, room)
    if len(lines[-1]) + len(flag.default) < room:
        lines[-1] = f"{lines[-1]} {flag.default}".rstrip()
    gap = " " * (_COLUMN + 4)
    if len(usage) > _COLUMN:
        return [f"  {usage}", *(gap + line for line in lines)]
    return [f"  {usage:<{_COLUMN}}  {lines[0]}", *(gap + line for line in lines[1:])]


def _shorten(text: str, width: int) -> str:
    """Return the first sentences that fit into a line; at least the first, up to a semicolon if it is longer."""
    first, *others = re.split(r"(?<=[\w`)][.?!]) ", text)
    if len(first) > width:
        return first.partition("; ")[0]
    for sentence in others:
        if len(first) + 1 + len(sentence) > width:
            break
        first = f"{first} {sentence}"
    return first
