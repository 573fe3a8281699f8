"""The papers' figures, stored in figures.toml. No torch."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


def read_figures(study: str) -> dict[str, float]:
    """Return the figures that a paper has for the runs of a study, by their names."""
    found: dict[str, float] = {}
    tables = _read_tables()
    table = tables.get(tables["same-figures"].get(study, study), {})
    for name, row in table.items():
        if name == "columns":
            continue
        if isinstance(row, list):
            found |= {name.format(column): figure for column, figure in zip(table["columns"], row, strict=True)}
        else:
            found[name] = row
    return found


@cache
def _read_tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("figures.toml").read_text(encoding="utf-8"))
