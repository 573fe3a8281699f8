"""The benchmark of the training step, on a CPU."""

from __future__ import annotations

import importlib
import json
from itertools import pairwise
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_writes_both_paces_and_their_ratio(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("step")
    monkeypatch.setattr(bench, "ROUND_SECONDS", 0.1)
    out = tmp_path / "step.json"
    bench.main(
        ["--only", "pvt_v2_b0-112", "deit_tiny_patch16_224-112", "--device", "cpu", "--batch", "2", "--out", str(out)]
    )
    found = json.loads(out.read_text())
    assert [(row["backbone"], row["size"], row["batch"]) for row in found["rows"]] == [
        ("pvt_v2_b0", 112, 2),
        ("deit_tiny_patch16_224", 112, 2),
    ]
    for row in found["rows"]:
        paces = row["images_per_second"]
        for name, speedup in row["speedup"].items():
            assert speedup == pytest.approx(paces["ours"] / paces[name], rel=0.3)  # of medians, over few rounds
    again = found["command"].split()[2:]
    assert "--device cpu --batch 2" in found["command"]
    assert "None" not in again
    assert not any(word.startswith("--") and other.startswith("--") for word, other in pairwise(again))
