"""The recipes of the IDMM paper's ablation."""

from __future__ import annotations

from vitling.methods.idmm import settings as idmm
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.papers.idmm_recipes import make_ablation


def crops_and_mixing(objective: IDMMConfig) -> tuple[bool, bool]:
    return objective.multi_crop, objective.cutmix


def test_table_8_adds_one_part_a_row():
    rows = list(make_ablation().values())
    on = [(row.objective.smoothing > 0, row.size == 112, *crops_and_mixing(row.objective)) for row in rows]
    assert on == [tuple(part < row for part in range(4)) for row in range(5)]
    assert [row.size for row in rows] == [224, 224, 112, 112, 112]
    plans = [idmm_plan(row.objective, row.size) for row in rows]
    assert [plan.crops for plan in plans] == [1, 1, 1, 6, 6]
    assert [any(group.mix.on for group in plan.groups) for plan in plans] == [False] * 4 + [True]
    assert rows[-1] == idmm.recipe()
    released = [idmm_plan(row.objective, row.size).crops for row in make_ablation(preset="released").values()]
    assert released == [2, 2, 6, 6]
    assert [idmm_plan(row.objective).crops for row in make_ablation(crops=2).values()] == [2, 2, 2, 6, 6]
    assert all(row.optim == rows[0].optim and row.epochs == 800 for row in rows)
