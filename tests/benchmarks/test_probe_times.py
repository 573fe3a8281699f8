"""The benchmark of probes at a small size; both backends agree."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_measures_and_writes_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    out = tmp_path / "found.json"
    sizes = ["--bank", "150", "--queries", "40", "--images", "200", "--judged", "60", "--classes", "4", "--dim", "12"]
    importlib.import_module("probes").main([*sizes, "--device", "cpu", "--out", str(out)])
    found = json.loads(out.read_text())
    knn, ours, theirs = found["rows"]
    assert (knn["bank"], knn["queries"], set(knn["top1"])) == (150, 40, {"k 10", "k 20", "k 100"})
    assert (ours["C"], ours["top1"]) == pytest.approx((theirs["C"], theirs["top1"]))
    assert theirs["times_as_long"] == pytest.approx(theirs["seconds"] / ours["seconds"])
    tried = theirs["seconds_of_a_short_fit_by_threads"]
    assert tried[str(theirs["threads"])] == min(tried.values())
    assert found["command"].startswith("python benchmarks/probes.py --bank 150")
    assert {"packages", "commit", "cpus", "gpu"} <= found["environment"].keys()
    assert "times as long as torch's" in capsys.readouterr().out
