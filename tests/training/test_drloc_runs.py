"""DRLoc in the loop: exact resume, passes, and weight 0."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import Stop, relative_distance, tiny_backbone
from tests.training.helpers import Score, config, equal, lines, train
from vitling.methods.drloc.loss import make_drloc_term
from vitling.methods.drloc.settings import DRLocConfig
from vitling.methods.supervised.loss import Supervised
from vitling.training import OptimConfig
from vitling.training.schedules import rise_and_fall
from vitling.views import ViewsConfig


def objective(weight=None, drop_path: float = 0.3) -> Supervised:
    torch.manual_seed(0)
    backbone = tiny_backbone(drop_path=drop_path)
    model = Supervised(backbone, ViewsConfig().plan(16), classes=3)
    if weight is not None:
        model.attach("drloc", make_drloc_term(backbone, DRLocConfig(hidden=32), seed=0), weight)
    return model


def own(model: Supervised) -> dict[str, torch.Tensor]:
    return {k: v for k, v in model.state_dict().items() if not k.startswith("auxiliaries")}


def test_with_weight_zero_a_run_is_the_run_without_it(store, tmp_path):
    plain, _ = train(store, tmp_path / "plain", model=objective())
    zero, _ = train(store, tmp_path / "zero", model=objective(0.0))
    assert equal(own(plain).values(), own(zero).values())
    assert "drloc" not in lines(tmp_path / "plain")[-1]
    assert lines(tmp_path / "zero")[-1]["drloc"] > 0


def test_a_resumed_run_is_bit_identical(store, tmp_path):
    weight = rise_and_fall(0.5, 2, 4)
    whole, _ = train(store, tmp_path / "whole", None, [Score(0, 0, 0, 0)], objective(weight))

    with pytest.raises(Stop):
        train(store, tmp_path / "run", None, [Score(0, 0, 0, 0, last=2)], objective(weight))
    resumed, _ = train(store, tmp_path / "run", None, [Score(0, 0, 0, 0)], objective(weight))
    assert equal(whole.state_dict().values(), resumed.state_dict().values())
    terms = [[line["drloc"] for line in lines(tmp_path / name)] for name in ("whole", "run")]
    assert terms[0] == terms[1]


def test_passes_do_not_change_the_draws(store, tmp_path):
    one, _ = train(store, tmp_path / "one", model=objective(0.5, 0.0))
    settings = config(optim=OptimConfig(lr=2e-3, accumulate=3))
    three, _ = train(store, tmp_path / "three", settings, model=objective(0.5, 0.0))
    assert relative_distance(one.state_dict(), three.state_dict(), objective(0.5, 0.0).state_dict()) < 1e-3
