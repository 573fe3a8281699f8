"""The benchmark of DRLoc on untrained networks."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from tests.conftest import make_folder


@pytest.fixture
def benchmark(monkeypatch):
    """Import the script as it runs from the command line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("drloc_untrained")


def test_measures_and_writes_rows(benchmark, tmp_path, capsys):
    folder, out = make_folder(tmp_path / "images", each=6), tmp_path / "found.json"
    tiny = ["--backbones", "vit_nano_patch4_32", "--images", "18", "--size", "32", "--steps", "3"]
    benchmark.main([str(folder), *tiny, "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert row["loss"] > 0
    assert row["pull, target offset/k"] > 0
    assert str(tmp_path) not in out.read_text()


def test_loss_is_small_if_tokens_carry_positions(benchmark):
    torch.manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(7.0), torch.arange(7.0), indexing="ij")
    known = torch.cat([torch.nn.functional.one_hot(place.long(), 7).float() for place in (rows, columns)], dim=-1)
    grids = known.permute(2, 0, 1).expand(64, -1, -1, -1)
    assert benchmark.train_mlp(grids, steps=150, batch=8) < 0.05
    assert benchmark.train_mlp(torch.randn(64, 14, 7, 7), steps=150, batch=8) > 0.15
