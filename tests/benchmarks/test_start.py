"""The benchmark of the time to full speed, on a few images."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from tests.conftest import make_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_writes_seconds_and_paces(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("start")
    folder, out = make_folder(tmp_path / "images", classes=3, each=4), tmp_path / "found.json"
    words = ["--stages", "supervised", "--modes", "off", "--backbone", "vit_nano_patch4_32", "--out", str(out)]
    bench.main([str(folder), *words, "--inductor", "triton.autotune_pointwise=False", "dynamic_scale_rblock=False"])
    found = json.loads(out.read_text())
    assert [row["cache"] for row in found["rows"]] == 2 * ["empty", "filled"]
    assert [row.get("inductor") for row in found["rows"][1:3]] == [
        None,
        "triton.autotune_pointwise=False dynamic_scale_rblock=False",
    ]
    assert found["command"].endswith("--inductor triton.autotune_pointwise=False dynamic_scale_rblock=False")
    assert all(0 < row["seconds"] < 100 and row["images_per_second"] > 0 for row in found["rows"])
    assert str(tmp_path) not in json.dumps(found["command"])
