"""A run that several tables have is run for one of them. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitling.files import read_json
from vitling.papers.ledger import Ledger, Row, fingerprint
from vitling.papers.study import StudyRun
from vitling.papers.train_task import FOR_WANT


def reuse_rows(ledger: Ledger, wanted: list[tuple[StudyRun, int]]) -> list[tuple[StudyRun, int]]:
    """Writes down those of `wanted` (runs and seeds) that another file beside this one has a value of, under the same
    settings, data and unit, and with where it is from. They cost no minutes here. What is found is given back."""
    if ledger.trial:
        return []
    there: dict[tuple[str, int], tuple[str, Row]] = {}
    for study, row in _measured(ledger):
        there.setdefault((row["fingerprint"], row["seed"]), (study, row))
    found = [(run, seed) for run, seed in wanted if (fingerprint(run), seed) in there]
    for run, seed in found:
        study, row = there[fingerprint(run), seed]
        ledger.record(_of(row, run.name, study))
    return found


def _measured(ledger: Ledger) -> Iterator[tuple[str, Row]]:
    """With the name of its study: rows of other studies that count the same, with a value that has no but."""
    for path in sorted(ledger.path.parent.glob("*.json")):
        content = _content(path)
        named = content.get("study")
        if named in (None, ledger.study.name) or content.get("trial") or content.get("unit") != ledger.study.unit:
            continue
        for row in content.get("rows", []):
            if "value" in row and not {"origin", "caution"} & row.keys() and not _in_passes(row):
                yield named, row


def _content(path: Path) -> dict[str, Any]:
    """Files of others may lie there too."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _in_passes(row: Row) -> bool:
    return any(FOR_WANT in words for stage in row.get("stages", []) for words in stage.get("warnings", []))


def _of(row: Row, name: str, study: str) -> Row:
    stages = {"stages": [stage | {"shared": True} for stage in row["stages"]]} if "stages" in row else {}
    own = {key: value for key, value in row.items() if key != "at_once"}
    return own | stages | {"run": name, "minutes": 0.0, "origin": f"measured as {row['run']} of {study}"}
