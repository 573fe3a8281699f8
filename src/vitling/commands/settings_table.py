"""--explain: every setting of a run with its value, its origin and the reason."""

from __future__ import annotations

from textwrap import fill

from rich.table import Table

from vitling.console import Console, is_main_process
from vitling.settings.config import RunConfig
from vitling.settings.listing import SettingRow, list_settings
from vitling.settings.resolve import Resolved

_TITLES = {"run": "Second stage", "pretrain": "First stage", "large": "Stage at --final-size"}
_FLAG_WIDTH = 44  # columns at most for a flag and its value, so that the reason fits beside them in 80
_NBSP = "\N{NO-BREAK SPACE}"


def print_settings(config: RunConfig) -> None:
    """Resolve the settings of all stages and print them, without training."""
    from vitling.runs.resolving import explain_settings

    stages = explain_settings(config)
    if not is_main_process():
        return
    console = Console(highlight=False)
    for stage, resolved in stages.items():
        _print_stage(console, _TITLES[stage] if len(stages) > 1 else "", resolved, is_first=stage == "pretrain")
    if any(r.config.minutes is not None and r.origins["epochs"].layer != "pace" for r in stages.values()):
        console.print("The epochs are upper limits: --minutes trains as many as fit at the measured pace.")


def _print_stage(console: Console, title: str, resolved: Resolved, is_first: bool) -> None:
    """Print the settings that were decided, each with origin and reason, then those at their defaults."""
    rows = list(list_settings(resolved, is_first))
    if title:
        console.print(title, style="bold")
    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=_FLAG_WIDTH, overflow="fold")
    table.add_column()
    for row in rows:
        if _is_decided(row):
            table.add_row(_format_flag(row), ": ".join(filter(None, (row.origin.layer, row.origin.reason))))
    console.print(table)
    defaults = "  ".join(_format_flag(row).replace(" ", _NBSP) for row in rows if not _is_decided(row))
    console.print("At their defaults:")
    wrapped = fill(defaults, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(wrapped.replace(_NBSP, " ") + "\n", style="dim", soft_wrap=True)


def _is_decided(row: SettingRow) -> bool:
    """Return whether a setting was chosen; a method's recipe sets many to their default."""
    return row.origin.layer != "default" and not (row.is_default and row.origin.layer == "method")


def _format_flag(row: SettingRow) -> str:
    if row.is_switch:
        return f"--{row.flag}" if row.value == "on" else f"--{row.flag} (off)"
    return f"--{row.flag} {row.value or '(none)'}"
