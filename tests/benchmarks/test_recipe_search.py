"""The recipe search, on a few images."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from tests.conftest import make_folder
from vitling.cli import run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = "--method supervised --backbone vit_micro_patch4_32 --size 8 --batch 8 --loop.device cpu --loop.trackers none"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("recipe_search")


def test_every_run_adds_a_line_and_is_not_repeated(bench, tmp_path, capsys):
    folder, out = make_folder(tmp_path / "images", classes=2, each=10), tmp_path / "search.jsonl"
    words = [f"stripes={folder}", "--epochs", "1", "--pretrain-epochs", "0", "--flags", TINY, "--out", str(out)]
    bench.main([*words, "--candidates", "base", "smoothing0+ema"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["candidate"] for row in rows] == ["base", "smoothing0+ema"]
    assert rows[1]["flags"] == "--objective.smoothing 0 --optim.ema 0.998"
    assert all(0 <= row["top1"] <= 100 and row["images_held_out"] == 4 for row in rows)
    assert str(tmp_path) not in out.read_text()
    bench.main([*words, "--candidates", "base", "smoothing0+ema"])
    assert len(out.read_text().splitlines()) == 2
    assert "smoothing0+ema" in capsys.readouterr().out


def test_the_first_classes_of_a_parquet_file(bench, tmp_path, monkeypatch):
    table = {"image": [b""] * 6, "label": [0, 1, 2, 0, 1, 2]}
    parquet.write_table(arrow.table(table), tmp_path / "all.parquet")
    searched = {}

    def search(options, sources):
        for name, source in sources.items():
            split, path = source.split("=")
            searched[name, split] = parquet.read_table(path)["label"].to_pylist()

    monkeypatch.setattr(bench, "search", search)
    bench.main([f"all=train={tmp_path / 'all.parquet'}", "--classes", "2", "--out", str(tmp_path / "search.jsonl")])
    assert searched == {("all-2", "train"): [0, 1, 0, 1]}


def test_a_failed_run_is_kept_with_its_error_and_tried_again(bench, tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 2, "", "Plan\nError: 9 px cannot be cut into patches.\n")
    monkeypatch.setattr(bench.subprocess, "run", lambda *words, **options: failed)
    folder, out = make_folder(tmp_path / "images", classes=2, each=10), tmp_path / "search.jsonl"
    for tries in (1, 2):
        bench.main([f"stripes={folder}", "--out", str(out)])
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(rows) == tries
        assert rows[-1]["error"] == "Error: 9 px cannot be cut into patches."


def test_a_run_without_a_first_stage_gets_the_time_of_both(bench):
    lengths = [bench.Job("d", "x", name, 0, (30, 10), "--size 8", {}, {}).length for name in ("base", "supervised")]
    assert lengths == ["--pretrain-epochs 30 --epochs 10 --size 8", "--epochs 58 --size 8"]
    job = bench.Job("d", "x", "supervised", 0, (30, 10), "--method idmm --pretrain-views.scale 0.5 1 --size 8", {}, {})
    assert job.length == "--epochs 58 --size 8"


@pytest.mark.parametrize(
    ("candidate", "length"),
    [
        ("size160", "--pretrain-epochs 100 --epochs 196"),
        ("size160+crops2", "--pretrain-epochs 300 --epochs 196"),
        ("crops2+half-first", "--pretrain-epochs 150 --epochs 180"),
        ("size160+half-first", "--pretrain-epochs 50 --epochs 353"),
        ("supervised+size160", "--epochs 510"),
    ],
)
def test_a_cheaper_candidate_gets_more_epochs(bench, candidate, length):
    assert bench.Job("d", "x", candidate, 0, (100, 100), "", {}, {}).length == length


@pytest.mark.parametrize(("candidate", "length"), [("half-first", (20, 164)), ("longer-first+half-first", (25, 148))])
def test_the_second_stage_gets_the_time_of_the_first(bench, candidate, length):
    job = bench.Job("d", "x", candidate, 0, (40, 100), "", {}, {}, first_cost=3.2)
    assert job.length == "--pretrain-epochs {} --epochs {}".format(*length)


def test_every_change_is_a_valid_plan(bench, tmp_path):
    """A wrong flag would be found only on a GPU, after minutes."""
    folder = make_folder(tmp_path / "images", classes=2, each=30, width=64, height=64)
    base = f"{bench.FIXED} --out {tmp_path / 'run'} --method idmm --backbone pvt_v2_b0 --explain"
    for name, change in bench.CHANGES.items():
        words = base.replace("--method idmm", "") if "--method" in change.flags else base
        assert run(["train", str(folder), *f"{words} {change.flags}".split()]) == 0, name


def test_unknown_candidates_are_refused(bench, capsys):
    with pytest.raises(SystemExit):
        bench.main(["d=x", "--candidates", "ema+nosuch"])
    assert "no such candidates: ema+nosuch" in capsys.readouterr().err
