"""The comparison of scores of suspects, on one case."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("suspect_scores")


def test_writes_a_row_for_each_kind_of_flip(bench, tmp_path):
    bench.main(["--components", "6", "--seeds", "1", "--out", str(tmp_path / "a.json")])
    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["flips"] for row in rows] == ["any class", "a similar class"]
    assert all(0.7 < row["agreement"] < 0.95 and 0.5 < row["k=4"] <= 1 for row in rows)


def test_flips_are_wrong_and_as_many_as_asked_for(bench):
    pixels, labels = np.random.default_rng(0).normal(size=(200, 4)), np.arange(200) % 5
    for kind in ("any class", "a similar class"):
        given, flipped = bench.flip(pixels, labels, kind, 0)
        assert flipped.sum() == 10
        assert ((given != labels) == flipped).all()
