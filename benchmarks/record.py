"""What every benchmark writes: its rows, and with which command, versions and machine they were made."""

from __future__ import annotations

from typing import Any

from vitling.files import write_json
from vitling.training.rundir import environment


def write_rows(out: str | None, what: str, command: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """As JSON, if there is a file to write to. `command` names no folder of this machine."""
    if out:
        known = environment() | {"command": command}
        write_json(out, {"what": what, "command": command, "environment": known, "rows": rows, **more})
