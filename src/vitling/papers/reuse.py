"""Reuse of measured rows: a run that several tables share is trained for one of them. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitling.errors import UserError
from vitling.loading import read_record
from vitling.papers.ledger import Ledger, Row, fingerprint
from vitling.papers.study import StudyRun
from vitling.papers.train_task import OUT_OF_MEMORY
from vitling.records import StudyResults


def reuse_rows(ledger: Ledger, missing: list[tuple[StudyRun, int]]) -> list[tuple[StudyRun, int]]:
    """Record those of `missing` (runs and seeds) that another results file next to this one has a value for.

    Settings, data and unit must be the same. A reused row names its origin and costs no minutes here.
    """
    if ledger.trial:
        return []
    measured: dict[tuple[str, int], tuple[str, Row]] = {}
    for study, row in _iterate_rows(ledger):
        measured.setdefault((row["fingerprint"], row["seed"]), (study, row))
    found = [(run, seed) for run, seed in missing if (fingerprint(run), seed) in measured]
    for run, seed in found:
        study, row = measured[fingerprint(run), seed]
        ledger.record(_adapt_row(row, run.name, study))
    return found


def _iterate_rows(ledger: Ledger) -> Iterator[tuple[str, Row]]:
    """Yield sound rows of other studies with the same unit, each with the name of its study."""
    for path in sorted(ledger.path.parent.glob("*.json")):
        content = _read_content(path)
        study = content.get("study")
        if study in (None, ledger.study.name) or content.get("trial") or content.get("unit") != ledger.study.unit:
            continue
        for row in content.get("rows", []):
            if "value" in row and not {"origin", "caution"} & row.keys() and not _ran_out_of_memory(row):
                yield study, row


def _read_content(path: Path) -> dict[str, Any]:
    """Read the results of a study; unrelated files give nothing."""
    try:
        return read_record(path, StudyResults)
    except (OSError, UserError):
        return {}


def _ran_out_of_memory(row: Row) -> bool:
    return any(OUT_OF_MEMORY in words for stage in row.get("stages", []) for words in stage.get("warnings", []))


def _adapt_row(row: Row, name: str, study: str) -> Row:
    stages = {"stages": [stage | {"shared": True} for stage in row["stages"]]} if "stages" in row else {}
    own = {key: value for key, value in row.items() if key != "at_once"}
    return own | stages | {"run": name, "minutes": 0.0, "origin": f"measured as {row['run']} of {study}"}
