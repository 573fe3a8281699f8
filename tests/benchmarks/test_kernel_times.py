"""The benchmark of our kernels, on a CPU, where torch computes both sides."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("kernels")


def test_writes_times_and_ratios_of_every_operation(bench, tmp_path):
    out = tmp_path / "kernels.json"
    bench.main(["--only", "pvt_v2_b0-112", "t2t", "--device", "cpu", "--batch", "2", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert {(row["backbone"], row["operation"]) for row in rows} == {
        ("pvt_v2_b0", "attention"),
        ("pvt_v2_b0", "depthwise"),
        ("t2t_vit_7", "attention"),
    }
    assert sum(row["blocks"] for row in rows if row["backbone"] == "pvt_v2_b0") == 16
    for row in rows:
        for part, ratio in row["speedup"].items():
            assert ratio == pytest.approx(row["us"]["torch"][part] / row["us"]["ours"][part], abs=0.01)


def test_finds_the_shapes_of_a_network(bench):
    assert bench.find_operations("pvt_v2_b0", 112) == {
        bench.Attention(28 * 28, 9, 1, 32): 2,
        bench.Attention(14 * 14, 9, 2, 32): 2,
        bench.Attention(7 * 7, 9, 5, 32): 2,
        bench.Attention(4 * 4, 16, 8, 32): 2,
        bench.Depthwise(28, 28, 256): 2,
        bench.Depthwise(14, 14, 512): 2,
        bench.Depthwise(7, 7, 640): 2,
        bench.Depthwise(4, 4, 1024): 2,
    }
    assert not bench.find_operations("deit_tiny_patch16_224", 224)  # 197 keys


def test_both_sides_compute_the_same(bench):
    torch.manual_seed(0)
    for operation in (bench.Attention(12, 5, 2, 16), bench.Depthwise(3, 4, 8)):
        ours, theirs, inputs = operation.make(2, torch.device("cpu"))
        found, expected = ours(*inputs), theirs(*inputs)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        slope = torch.randn_like(found)
        for one, other in zip(*(torch.autograd.grad(y, inputs, slope) for y in (found, expected)), strict=True):
            torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)
