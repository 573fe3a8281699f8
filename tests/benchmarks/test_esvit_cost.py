"""The benchmark of EsViT's cost, small and on the CPU, and its repeated calls."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from vitling.errors import RunAborted
from vitling.papers import measure

NANO = "vit_nano_patch4_32"
TINY = ["--backbones", NANO, "--size", "32", "--device", "cpu", "--prototypes", "64"]


@pytest.fixture
def benchmark(monkeypatch):
    """Import the script as it runs from the command line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("esvit_cost")


def test_measures_and_writes_both_tables(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measure, "ROUNDS", 2)
    monkeypatch.setattr(measure, "STEPS", 2)
    monkeypatch.setattr(measure, "WARMUP_STEPS", 1)
    out = tmp_path / "found.json"
    benchmark.main([*TINY, "--batches", "1", "--inference-batch", "2", "--sampled", "--out", str(out)])
    found = json.loads(out.read_text())
    eight, nine = found["rows"]
    assert (eight["table"], eight["backbone"], eight["batch"], eight["compile"]) == (8, NANO, 2, "off")
    assert eight["images_per_second"] > 0
    assert (nine["table"], nine["batch"], nine["prototypes"], list(nine["seconds"])) == (
        *(9, 1, 64),
        ["view", "both", "sampled"],
    )
    assert found["command"] == (
        f"python benchmarks/esvit_cost.py --backbones {NANO} --batches 1 --inference-batch 2 --size 32 "
        "--prototypes 64 --sampled"
    )
    assert {"packages", "commit", "cpus", "gpu"} <= found["environment"].keys()
    printed = capsys.readouterr().out
    assert "images/s" in printed
    assert "times)" in printed


@pytest.fixture
def measured(benchmark, monkeypatch):
    """Replace measurements by constants and record which rows are measured."""
    measured = []

    def measure(backbone, batch, further, **settings):
        measured.append((9, backbone, batch))
        names = ["view", "both", *further]
        ratios = dict.fromkeys(names[1:], 1.1)
        return {
            "seconds": dict.fromkeys(names, 0.1),
            "peak_gb": dict.fromkeys(names, 2.0),
            "time_ratio": ratios,
            "memory_ratio": ratios,
        }

    def measure_throughput(backbone, batch, **settings):
        measured.append((8, backbone, batch))
        return {"images_per_second": 1000.0}

    monkeypatch.setattr(benchmark, "measure_regions", measure)
    monkeypatch.setattr(benchmark, "measure_throughput", measure_throughput)
    return measured


def test_default_rows_are_those_of_the_paper(benchmark, measured, tmp_path, capsys):
    out = tmp_path / "found.json"
    benchmark.main(["--out", str(out)])
    found = json.loads(out.read_text())
    assert len({backbone for table, backbone, _ in measured if table == 8}) == 12
    swin = [batch for table, backbone, batch in measured if table == 9 and backbone == "swin_tiny_patch4_window7_224"]
    assert swin == [1, 8, 12, 128]
    assert [batch for *_, backbone, batch in measured if backbone.startswith("swin_base") and batch != 128] == [1, 1]
    assert all("paper_images_per_second" in row for row in found["rows"] if row["table"] == 8)
    first = next(row for row in found["rows"] if row["table"] == 9)
    assert (first["backbone"], first["batch"]) == ("deit_small_patch16_224", 1)
    assert (first["paper_mb"], first["paper_seconds"]["both"]) == ({"view": 1391, "both": 2641}, 0.23315)
    assert not any(
        name.startswith("paper") for row in found["rows"] if row["batch"] == 128 for name in row if row["table"] == 9
    )
    assert found["command"] == "python benchmarks/esvit_cost.py"
    assert "100.00 ms (1.100 times, paper 1.115), 2,000 MB (1.100 times, paper 1.899)" in capsys.readouterr().out


def test_earlier_rows_are_not_measured_again(benchmark, measured, tmp_path):
    call = [*TINY, "--tables", "9", "--out", str(tmp_path / "found.json")]
    benchmark.main([*call, "--batches", "2"])
    benchmark.main([*call, "--batches", "2", "4"])
    assert measured == [(9, NANO, 2), (9, NANO, 4)]
    benchmark.main([*call, "--batches", "2", "--sinkhorn"])  # replaces the row that lacks it
    benchmark.main([*call, "--batches", "2", "--sampled"])
    benchmark.main([*call, "--batches", "2", "4"])
    assert len(measured) == 4
    benchmark.main([*call, "--batches", "2", "--prototypes", "32"])
    assert len(measured) == 5
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert sorted((row["batch"], row["prototypes"], *row["steps"]) for row in rows) == [
        (2, 32, "both"),
        (2, 64, "both", "sampled"),
        (2, 64, "both", "sinkhorn"),
        (4, 64, "both"),
    ]


def test_rows_of_another_machine_are_dropped(benchmark, measured, tmp_path):
    out = tmp_path / "found.json"
    call = [*TINY, "--tables", "8", "--out", str(out)]
    benchmark.main(call)
    found = json.loads(out.read_text())
    found["environment"]["gpu"] = "another"
    out.write_text(json.dumps(found))
    benchmark.main(call)
    assert len(measured) == 2


def test_no_row_starts_after_the_minutes(benchmark, measured, tmp_path, capsys):
    out = tmp_path / "found.json"
    benchmark.main([*TINY, "--minutes", "0", "--out", str(out)])
    assert measured == []
    assert not out.exists()
    assert "2 rows are left" in capsys.readouterr().out


def test_rows_out_of_memory_are_skipped(benchmark, measured, monkeypatch, tmp_path, capsys):
    def full(**settings):
        raise RunAborted("Out of memory.")

    monkeypatch.setattr(benchmark, "measure_throughput", full)
    benchmark.main([*TINY, "--batches", "1", "--out", str(tmp_path / "found.json")])
    assert [row["table"] for row in json.loads((tmp_path / "found.json").read_text())["rows"]] == [9]
    assert "Out of memory." in capsys.readouterr().out
