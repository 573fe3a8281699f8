"""What every benchmark writes: its rows, and with which command, versions and machine they were made."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from vitling.files import read_json, write_json
from vitling.training.rundir import describe_environment


def write_rows(out: str | None, what: str, command: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """As JSON, if there is a file to write to. `command` names no folder of this machine."""
    if out:
        known = describe_environment() | {"command": command}
        write_json(out, {"what": what, "command": command, "environment": known, "rows": rows, **more})


def command_of(script: str, options: Namespace, leaving: str = "") -> str:
    """How to run it again, with DATA for wherever the images lie. Where it writes to is left out."""
    flags = []
    for name, value in vars(options).items():
        if name not in ("data", "out", *leaving.split()):
            flags += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return " ".join([f"python benchmarks/{script}.py", *(["DATA"] if hasattr(options, "data") else []), *flags])


def found_before(out: str | None) -> dict[str, Any]:
    """What an earlier call has written, if that was with these versions on such a machine: figures of others are not to
    be set beside ours."""
    if not out or not Path(out).exists():
        return {}
    found, here = read_json(out), describe_environment()
    alike = all(found["environment"].get(key) == here.get(key) for key in ("gpu", "cpus", "packages"))
    return found if alike else {}
