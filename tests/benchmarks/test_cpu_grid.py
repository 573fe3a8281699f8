"""The grid that compares the plan with a plain ResNet-18 on CPUs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def grid(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("cpu_plan", None)
    import cpu_plan

    return cpu_plan


def make_run(candidate: str, top1: float | None, seed: int = 0, minutes: float = 1.0) -> dict:
    cell = {"data": "cifar100", "images": 100, "classes": 6, "minutes": minutes, "candidate": candidate, "seed": seed}
    return {"cell": cell, "flags": "", "top1": top1}


def test_plan_is_compared_with_the_better_plain_network(grid):
    runs = [make_run("plain-64", 50.0 + seed, seed) for seed in range(3)]
    runs += [make_run("plain-96", 40.0, seed) for seed in range(3)]
    for plan, verdict in ((51.5, "level"), (49.0, "behind"), (60.0, "ahead")):
        (row,) = grid.summarise(
            [*runs, *(make_run("plan", plan, seed) for seed in range(3)), make_run("plan", None, 3)]
        )
        assert row["verdict"] == verdict
        assert row["difference"] == pytest.approx(plan - 51)
    assert row["plain-64"] == "51.0 ± 1.0 (3)"
    (row,) = grid.summarise([*runs, make_run("plan", 60.0)])
    assert row["verdict"] == "one seed"


def test_an_interrupted_grid_has_one_seed_of_everything_short(grid):
    cells = [
        grid.Cell("cifar100", 100, 6, minutes, candidate, seed)
        for seed in range(3)
        for minutes in (10.0, 3.0, 1.0)
        for candidate in ("plain-96", "plain-64", "plan")
    ]
    order = [(cell.minutes, cell.seed) for cell in sorted(cells, key=grid.rank) if cell.candidate == "plan"]
    assert order[:4] == [(1.0, 0), (1.0, 1), (3.0, 0), (1.0, 2)]
    assert order[-3:] == [(10.0, 0), (10.0, 1), (10.0, 2)]
    assert sorted(cells, key=grid.rank)[0].candidate == "plain-64"
