"""Write the rows of a benchmark together with its command, package versions and machine."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from vitling.data.config import DataConfig
from vitling.data.content import hash_content
from vitling.data.splits import read_splits
from vitling.files import write_json
from vitling.loading import read_json
from vitling.training.rundir import describe_environment


def write_rows(out: str | None, what: str, command: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """Write JSON if `out` is given. `command` must not contain paths of this machine."""
    if out:
        known = describe_environment() | {"command": command}
        write_json(out, {"what": what, "command": command, "environment": known, "rows": rows, **more})


def hash_data(source: str) -> dict[str, str]:
    """Hash the splits of DATA, for the results of a benchmark on it."""
    splits = read_splits(source, DataConfig())
    found = {"train": splits.train, "val": splits.val, "test": splits.hidden_test}
    return {name: hash_content(dataset) for name, dataset in found.items() if dataset is not None}


def format_command(script: str, options: Namespace, exclude: str = "") -> str:
    """Return the command that repeats a benchmark, with DATA in place of the path of the images and without --out."""
    flags = []
    for name, value in vars(options).items():
        if name in ("data", "out", *exclude.split()) or value is None or value is False or value in ("", []):
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        flags += [f"--{name.replace('_', '-')}", *(shlex.quote(str(value)) for value in values)]
    return " ".join([f"python benchmarks/{script}.py", *(["DATA"] if hasattr(options, "data") else []), *flags])


def read_earlier(out: str | None) -> dict[str, Any]:
    """Read what an earlier call wrote; empty if its package versions or machine differ, which would not compare."""
    if not out or not Path(out).exists():
        return {}
    found, here = read_json(out), describe_environment()
    same = all(found["environment"].get(key) == here.get(key) for key in ("gpu", "cpus", "packages"))
    return found if same else {}
