"""benchmarks/unfamiliar.py on a tiny run: other images are compared with the test split."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import make_folder
from tests.made_runs import TINY
from vitling.cli import run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_noise_is_unfamiliar(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bench = importlib.import_module("unfamiliar")
    for split, first, each in (("train", 0, 20), ("val", 20, 10), ("test", 30, 10)):
        make_folder(tmp_path / "images", each=each, split=split, first=first)
    (tmp_path / "noise").mkdir()
    for seed in range(8):
        pixels = np.random.default_rng(seed).integers(0, 256, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "noise" / f"{seed}.png")
    folder, out = tmp_path / "run", tmp_path / "found.json"
    assert run(["train", str(tmp_path / "images"), "--out", str(folder), *TINY, "--size", "16"]) == 0
    others = ["--other", f"noise={tmp_path / 'noise'}"]
    bench.main([str(folder), str(tmp_path / "images"), "--out", str(out), *others])
    test, noise = json.loads(out.read_text())["rows"]
    assert (test["n"], noise["n"]) == (30, 8)
    assert test["marked"] < 0.3
    assert noise["marked"] > test["marked"]
    assert noise["auroc"] > 0.95
    assert noise["pixels"] > 0.95
