"""Accuracy over minutes, on a few images."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.conftest import make_folder
from vitling.cli import run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = "--backbone vit_micro_patch4_32 --size 8 --batch 8 --loop.device cpu --loop.trackers none --no-report"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("minutes")


def test_writes_accuracy_seconds_and_epochs_once(bench, tmp_path):
    folder, out = make_folder(tmp_path / "images", classes=2, each=20), tmp_path / "minutes.json"
    words = [f"stripes={folder}", "--minutes", "0.2", "--runs", "one-stage", "--flags", TINY, "--out", str(out)]
    for _ in range(2):
        bench.main(words)
    found = json.loads(out.read_text())
    assert found["command"].startswith("python benchmarks/minutes.py stripes=DATA --minutes 0.2 --runs one-stage")
    (row,) = found["rows"]
    assert row["split"] == "val"
    assert 0 <= row["top1"] <= 100
    assert row["images"] == 8
    assert 0 < row["seconds"] < 100
    assert row["epochs"]["finetune"] >= 1
    assert row["images_per_second"]["finetune"] > 0
    assert row["log_loss"] > 0
    assert 0 <= row["calibration_error"] <= 1
    assert str(tmp_path) not in out.read_text()
    bench.main([*words, "--seeds", "0", "--flags", f"{TINY} --optim.ema 0.9"])
    assert len(json.loads(out.read_text())["rows"]) == 2


def test_a_failure_is_kept_and_tried_again(bench, tmp_path):
    folder, out = make_folder(tmp_path / "images", classes=2, each=20), tmp_path / "minutes.json"
    for tries in (1, 2):
        bench.main([f"stripes={folder}", "--minutes", "1", "--flags", "--size 9999999", "--out", str(out)])
        rows = json.loads(out.read_text())["rows"]
        assert len(rows) == tries
        assert "Error" in rows[-1]["error"]


def test_every_run_is_a_valid_plan(bench, tmp_path):
    folder = make_folder(tmp_path / "images", classes=2, each=30, width=64, height=64)
    for name, flags in bench.RUNS.items():
        words = f"{bench.HELD_OUT} --minutes 1 --out {tmp_path / 'run'} {flags} --explain"
        assert run(["train", str(folder), *words.split()]) == 0, name
