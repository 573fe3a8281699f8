"""The benchmark of flipped labels, on a few images."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tests.conftest import make_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_writes_what_was_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("label_doctor")
    folder, out = make_folder(tmp_path / "images", classes=3, each=20), tmp_path / "found.json"
    tiny = ["method=idmm", "size=8", "pretrain-size=8", "backbone=vit_micro_patch4_32", "epochs=1", "batch=16"]
    tiny += ["pretrain-epochs=1", "loop.device=cpu", "loop.trackers=none"]
    bench.main([f"stripes={folder}", "--folds", "0", "--minutes", "5", "--train-flags", *tiny, "--out", str(out)])
    found = json.loads(out.read_text())
    (row,) = found["rows"]
    assert (row["images"], row["flipped"]) == (60, 3)
    assert 0 <= row["recall_at_80_precision"] <= row["recall"] <= 1
    assert set(row["data_hashes"]) == {"train"}
    assert str(tmp_path) not in json.dumps(found["command"])


def test_recall_at_a_precision(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("label_doctor")
    hits = [True, True, False, True, True, False, False]
    assert bench.recall_at_precision(hits, 8, 0.8) == 4 / 8
    assert bench.recall_at_precision(hits, 8, 1.0) == 2 / 8
    assert bench.recall_at_precision([], 8, 0.8) == 0
