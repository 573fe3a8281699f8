"""--explain: every setting of a run with its value, its origin and the reason."""

from __future__ import annotations

from rich.table import Table

from vitling.console import Console, is_main_process
from vitling.settings.config import RunConfig
from vitling.settings.listing import list_settings
from vitling.settings.resolve import Resolved

_TITLES = {"run": "Second stage", "pretrain": "First stage", "large": "Stage at --final-size"}


def print_settings(config: RunConfig) -> None:
    """Resolve the settings of all stages and print them, without training."""
    from vitling.runs.resolving import explain_settings

    stages = explain_settings(config)
    if not is_main_process():
        return
    console = Console()
    for stage, resolved in stages.items():
        console.print(_make_table(_TITLES[stage] if len(stages) > 1 else "", resolved, is_first=stage == "pretrain"))
    if any(r.config.minutes is not None and r.origins["epochs"].layer != "pace" for r in stages.values()):
        console.print("The epochs are upper limits: --minutes trains as many as fit at the measured pace.")


def _make_table(title: str, resolved: Resolved, is_first: bool) -> Table:
    """Tabulate the settings of a stage under the flags that set them; `is_first`: before a second stage of `train`."""
    table = Table(title=title or None, title_justify="left")
    for column in ("setting", "value", "origin", "reason"):
        table.add_column(column, overflow="fold")
    for row in list_settings(resolved, is_first):
        style = "dim" if row.is_default else None
        table.add_row(f"--{row.flag}", row.value, row.origin.layer, row.origin.reason, style=style)
    return table
