"""The recipes of the EsViT paper's tables."""

from __future__ import annotations

import pytest

from vitling.backbones import names
from vitling.methods.dino.settings import dino_plan
from vitling.methods.esvit.settings import IMAGENET
from vitling.methods.method import epochs_for_views
from vitling.papers import esvit_recipes as esvit
from vitling.ranges import check_ranges


def test_table_1():
    rows = {name: esvit.table_1(name) for name in esvit.SWIN}
    assert {name: row.objective.region_from for name, row in rows.items()} == {
        "swin-t": 0,
        "swin-s": 0,
        "swin-b": 200,
        "swin-t-w14": 200,
        "swin-s-w14": 180,
        "swin-b-w14": 200,
    }
    assert {name: row.drop_path for name, row in rows.items()} == {
        name: 0.1 if name.startswith("swin-t") else 0.2 for name in rows
    }
    for row in (*rows.values(), *(esvit.table_1(name, regions=False) for name in rows)):
        check_ranges(row.objective)
        row.objective.check()
    assert esvit.table_1("swin-b", regions=False).objective.region_weight == 0


def test_tables_3_and_13():
    """300, 50 and 30 epochs show about as many views; so do those that are computed."""
    published = [esvit.table_3(n) for n in (IMAGENET, 7_500_000, 14_200_000)]
    assert [(stage.epochs, stage.optim.warmup_epochs) for stage in published] == [(300, 10), (50, 2), (30, 1)]
    assert esvit.table_3(2_400_000).epochs == 150  # of the released weights
    assert esvit.table_3(5_000_000).epochs == 77  # as many views
    batches = {regions: [esvit.table_3(n, regions).batch for n in (IMAGENET, 7_500_000)] for regions in (0, 1)}
    assert batches == {0: [1024, 1024], 1: [512, 1024]}
    for stage, images in zip(published, (IMAGENET, 7_500_000, 14_200_000)):
        budget = 300 * IMAGENET * 10
        assert stage.epochs == pytest.approx(epochs_for_views(budget, images, 10), rel=0.15)


def test_tables_4_and_5():
    for name in esvit.OTHERS:
        stage = esvit.table_4(name)
        assert (stage.batch, stage.optim.peak_lr(1024), stage.objective.region_from) == (1024, 2e-3, 200)
        assert stage.drop_path == (0.0 if name == "r-50" else 0.1)
    assert [stage.drop_path for stage in (esvit.table_5(), esvit.contrastive(), esvit.contrastive(dense=True))] == [
        0
    ] * 3
    pair = [esvit.table_5(regions) for regions in (True, False)]
    assert [(stage.backbone, stage.epochs, dino_plan(stage.objective, 224).crops) for stage in pair] == [
        ("resnet50.torchvision", 200, 2)
    ] * 2
    assert [stage.objective.region_weight for stage in pair] == [0.5, 0.0]


@pytest.mark.parametrize("backbone", [*esvit.SWIN.values(), *esvit.OTHERS.values()])
def test_every_network_of_the_tables_is_there(backbone):
    assert names.find_entry(backbone) is not None
