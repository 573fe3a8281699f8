"""--explain: every setting of a run with its value, its origin and the reason."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from vitling.console import is_main_process
from vitling.methods import METHODS
from vitling.settings.config import RunConfig
from vitling.settings.layers import Origin
from vitling.settings.names import flag_name, format_value, leaves
from vitling.settings.resolve import Resolved
from vitling.settings.stages import name_in_train

_TITLES = {"run": "Second stage", "pretrain": "First stage", "large": "Stage at --final-size"}
_HIDDEN = ("source", "out", "resume", "overwrite", "explain", "explicit", "store_least")


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
    default, unused = dict(leaves(type(resolved.config)())), _find_unused(resolved.config)
    for name, value in leaves(resolved.config):
        if name not in _HIDDEN and name.partition(".")[0] not in unused:
            origin = resolved.origins.get(name, Origin())
            style = "dim" if value == default[name] else None
            shown = "" if value is None else format_value(value)
            flag = flag_name(name_in_train(name) if is_first else name)
            table.add_row(f"--{flag}", shown, origin.layer, origin.reason, style=style)
    return table


def _find_unused(config: RunConfig) -> set[str | None]:
    """Return the groups of settings that this run does not use: other methods, an auxiliary loss that is off."""
    method = METHODS.get(getattr(config, "method", ""))
    others = {m.field for m in METHODS.values() if m is not method}
    return others | ({"drloc"} if config.aux == "none" else set())
