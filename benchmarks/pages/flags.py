"""docs/flags.md: all flags of all commands. `python -m benchmarks.pages.flags docs/flags.md` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitling.commands.flag_docs import Flag, list_flags
from vitling.commands.verbs import VERBS
from vitling.files import write_file

_HEAD = """# Flags

Generated from the code by `make flags`; do not edit. `vitling COMMAND --help` shows the main flags, `--help-all` all
of them. Settings with a dot in their name are listed once, below the commands.
"""


def make_page() -> str:
    """Write the page: a table for each command, then one for each group of dotted flags."""
    return "\n".join([_HEAD, *_describe_commands(), "## Dotted flags\n", *_describe_groups()])


def _describe_commands() -> Iterator[str]:
    for verb, command in VERBS.items():
        groups = dict.fromkeys(f"`--{flag.group}.*`" for flag in list_flags(command) if flag.group)
        dotted = [f"and {', '.join(groups)}\n"] if groups else []
        yield "\n".join([f"## {verb}\n", *_table([flag for flag in list_flags(command) if not flag.group]), *dotted])


def _describe_groups() -> Iterator[str]:
    tables: dict[tuple[str, tuple[Flag, ...]], list[str]] = {}
    for verb, command in VERBS.items():
        flags = list_flags(command)
        for name in dict.fromkeys(flag.group for flag in flags if flag.group):
            own = tuple(flag for flag in flags if flag.group == name)
            tables.setdefault((name, own), []).append(verb)
    for (name, own), verbs in tables.items():
        yield "\n".join([f"### --{name} ({', '.join(verbs)})\n", f"{own[0].group_help}\n", *_table(own)])


def _table(flags: Sequence[Flag]) -> list[str]:
    rows = [f"| `{_escape(flag.usage)}` | {_escape(f'{flag.help} {flag.default}'.strip())} |" for flag in flags]
    return ["| flag | meaning |", "| --- | --- |", *rows, ""]


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    write_file(Path(sys.argv[1]), make_page())
