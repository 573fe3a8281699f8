"""Fingerprints identify measured rows in results/, so no refactoring may change them."""

from __future__ import annotations

import json
from pathlib import Path

from vitling.papers.ledger import fingerprint
from vitling.papers.studies import all_studies

GOLDEN = Path(__file__).parent / "golden" / "fingerprints.json"


def test_fingerprints_match_the_golden_file():
    expected = json.loads(GOLDEN.read_text())
    found = {study.name: {run.name: fingerprint(run) for run in study.runs} for study in all_studies()}
    assert found.keys() == expected.keys()
    for study, runs in found.items():
        assert runs == expected[study], study
