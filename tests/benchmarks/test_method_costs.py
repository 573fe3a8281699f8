"""The benchmark of the methods' costs, small and on the CPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from vitling.methods import METHODS
from vitling.papers import measure
from vitling.training import OptimConfig

TINY = ["--backbone", "vit_nano_patch4_32", "--size", "16", "--batch", "4", "--steps", "1", "--device", "cpu"]


@pytest.fixture
def benchmark(monkeypatch):
    """Import the script as it runs from the command line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(measure, "WARMUP_STEPS", 1)
    return importlib.import_module("methods")


def test_rows_have_ratios_to_idmm_and_are_measured_once(benchmark, tmp_path, capsys):
    out = tmp_path / "found.json"
    for methods in (["simclr"], ["idmm", "simclr"]):
        benchmark.main([*TINY, "--methods", *methods, "--out", str(out)])
    assert "simclr: measured earlier" in capsys.readouterr().out
    found = json.loads(out.read_text())
    idmm, simclr = found["rows"]
    assert (idmm["method"], idmm["crops"], simclr["method"], simclr["crops"]) == ("idmm", 6, "simclr", 2)
    assert idmm["time_over_idmm"] == 1
    benchmark.main([*TINY[:-4], "--steps", "2", "--device", "cpu", "--methods", "idmm", "--out", str(out)])
    assert [row["steps"] for row in json.loads(out.read_text())["rows"]] == [1, 1, 2]  # others stay
    assert simclr["time_over_idmm"] == pytest.approx(simclr["whole_ms"] / idmm["whole_ms"])
    command = "python benchmarks/methods.py --methods idmm simclr --backbone vit_nano_patch4_32 --batch 4"
    assert found["command"] == f"{command} --size 16 --steps 1"


def test_the_step_alone(benchmark, tmp_path):
    out = tmp_path / "found.json"
    benchmark.main([*TINY, "--methods", "idmm", "simclr", "--measure", "step", "--out", str(out)])
    found = json.loads(out.read_text())
    idmm, simclr = found["rows"]
    assert simclr["step_over_idmm"] == pytest.approx(simclr["step_ms"] / idmm["step_ms"])
    assert "whole_ms" not in simclr
    assert found["command"].endswith("--measure step")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_own_optimiser_and_views(benchmark, method):
    store = measure.make_store(8, 16, benchmark.torch.device("cpu"))
    work = benchmark.make_workload(method, "vit_nano_patch4_32", 4, 16, store)
    expected = METHODS[method].recipe("vit_nano_patch4_32", "paper", 800, 16)
    if METHODS[method].adapt is None:
        assert work.optim == expected.optim
    assert work.optim != OptimConfig()
    assert work.plan.crops == METHODS[method].views(expected.objective, 16).crops
