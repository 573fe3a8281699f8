"""Fingerprints identify measured rows in results/, so no refactoring may change them."""

from __future__ import annotations

import json
from pathlib import Path

from vitling.papers.ledger import fingerprint
from vitling.papers.studies import all_studies

GOLDEN = Path(__file__).parent / "golden" / "fingerprints.json"
RESULTS = Path(__file__).parents[2] / "results"
RELEASED_MLP = "DRLoc's MLP starts with std 0.02 in the release (drloc.init)"
# Rows of results/ that were measured before the settings of their run changed on purpose. They keep their own settings.
CHANGED = {
    ("drloc-t3-released", "swin-t-flowers102-drloc"): RELEASED_MLP,
    ("drloc-t3-released", "t2t-vit-14-flowers102-drloc"): RELEASED_MLP,
}
# Changed on purpose without a measured row: EsViT's teacher temperature rises per epoch (esvit.teacher_warmup_per; all
# studies of EsViT on ImageNet), ResNet-50 starts as torchvision's (esvit-t4, -t5, -t12, drloc-supp-t8), DRLoc's
# ViT-B/16 is that of its release (drloc-supp-t9), and so is the start of its MLP (all of drloc-t3-released). Rows of
# idmm-t8-released without multi-crop have two crops.


def test_fingerprints_match_the_golden_file():
    expected = json.loads(GOLDEN.read_text())
    found = {study.name: {run.name: fingerprint(run) for run in study.runs} for study in all_studies()}
    assert found.keys() == expected.keys()
    for study, runs in found.items():
        assert runs == expected[study], study


def test_measured_rows_have_the_settings_of_their_run():
    now = {(study.name, run.name): fingerprint(run) for study in all_studies() for run in study.runs}
    files = (json.loads(path.read_text()) for path in RESULTS.glob("*.json"))
    measured = {
        (file["study"], row["run"], row["fingerprint"]) for file in files if "study" in file for row in file["rows"]
    }
    assert {(study, run) for study, run, known in measured if now.get((study, run)) != known} == CHANGED.keys()
