"""The stages of IDMM, number by number."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.tiny import tiny_backbone
from tests.training.helpers import QUIET, open_store, run_in
from vitling.errors import UserError
from vitling.methods.idmm import settings as idmm
from vitling.methods.idmm.loss import IDMM
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.methods.supervised import settings as supervised
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.training import FitConfig, fit
from vitling.views.policies import idmm_finetune, idmm_pretrain

BACKBONES = ("deit_tiny_patch16_224", "pvt_v2_b0", "t2t_vit_7")


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("preset", ["paper", "released"])
def test_settings_that_all_stages_share(backbone, preset):
    for stage in (idmm.recipe(backbone, preset), idmm.finetune_recipe(backbone, preset)):
        FitConfig(stage.epochs, stage.batch, optim=stage.optim).check()
        assert (stage.backbone, stage.batch, stage.drop_path) == (backbone, 256, 0.1)
        optim = stage.optim
        assert (optim.weight_decay, optim.clip, optim.betas, optim.ema) == (1e-3, 0.0, (0.9, 0.999), 0.0)
    before, after = idmm.recipe(backbone, preset), idmm.finetune_recipe(backbone, preset)
    assert (before.epochs, before.size) == (800, 112)
    assert idmm_plan(before.objective, before.size) == idmm_pretrain(112)
    assert (after.epochs, after.size) == (200, 224)
    assert (after.objective.smoothing, after.objective.drop_path) == (0.1, 0.1)
    assert before.optim == after.optim


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_the_supervised_baseline_differs_in_its_labels_and_its_views(preset):
    by_labels, by_images = (stage("t2t_vit_7", preset) for stage in (supervised.recipe, idmm.recipe))
    assert supervised.METHOD.views(None, 112) == idmm_finetune(112)
    assert by_labels.objective == SupervisedConfig(smoothing=0.1, drop_path=0.1)
    assert replace(by_labels, objective=by_images.objective) == by_images


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_paper(backbone):
    stage = idmm.recipe(backbone)
    optim = stage.optim
    assert (optim.lr, optim.warmup_epochs, optim.cosine_from, optim.decay_all) == (5e-4, 5, "warmup", False)
    assert stage.objective == IDMMConfig(smoothing=0.1, smoothing_form="others")


@pytest.mark.parametrize(
    ("backbone", "lr", "warmup", "smoothing"),
    [(BACKBONES[0], 5e-4, 2, 0.0), (BACKBONES[1], 1e-3, 10, 0.1), (BACKBONES[2], 1e-3, 10, 0.1)],
)
def test_the_released_code(backbone, lr, warmup, smoothing):
    stage = idmm.recipe(backbone, "released")
    optim = stage.optim
    assert (optim.lr, optim.warmup_epochs, optim.cosine_from, optim.decay_all) == (lr, warmup, "idmm", True)
    assert (optim.warmup_lr, optim.min_lr) == (0.0, 0.0)
    assert stage.objective == IDMMConfig(smoothing=smoothing, smoothing_form="all")


@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize(
    ("backbone", "batch", "lr"), [(BACKBONES[0], 128, 5e-5), (BACKBONES[1], 128, 5e-5), (BACKBONES[2], 32, 1.25e-5)]
)
def test_at_448(preset, backbone, batch, lr):
    large, usual = (idmm.finetune_recipe(backbone, preset, size=size) for size in (448, 224))
    assert (large.epochs, large.batch, large.size) == (100, batch, 448)
    assert large.optim == replace(usual.optim, lr=lr)


def test_another_length():
    assert idmm.finetune_recipe(epochs=800).epochs == 800
    assert idmm.recipe(BACKBONES[1], "released", epochs=100).optim.warmup_epochs == 10
    assert idmm.recipe(BACKBONES[1], "released", epochs=20).optim.warmup_epochs == 2


def test_unknown_presets_are_refused():
    for stage in (idmm.recipe, supervised.recipe, idmm.finetune_recipe):
        with pytest.raises(UserError, match="paper or released"):
            stage(preset="best")


def test_recipes_need_no_torch():
    code = "import sys; from vitling.methods.idmm.settings import recipe; recipe(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_stage_trains(folder, tmp_path):
    """Small in all that costs time; the released schedule and its weight decay."""
    store = open_store(folder)
    stage = idmm.recipe("vit", "released", epochs=1, size=16)
    objective = IDMM(tiny_backbone(), idmm_plan(stage.objective, stage.size), len(store), stage.objective)
    config = FitConfig(stage.epochs, stage.batch, optim=stage.optim, loop=QUIET)
    outcome = fit(objective, store, config, run=run_in(tmp_path / "run"))
    assert outcome.metrics["global"] == pytest.approx(3.4, abs=0.2)  # ln 30
    assert outcome.metrics["loss"] == pytest.approx(outcome.metrics["global"] + outcome.metrics["local"])
