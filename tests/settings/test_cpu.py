"""The plan of labelled runs without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolved import plan_for
from vitling.settings.config import TrainConfig
from vitling.settings.cpu import BATCH, MIXED, RATE, VIEW, expect_epochs
from vitling.settings.facts import Facts, Fit
from vitling.settings.names import apply_overrides
from vitling.settings.plan import describe_plan
from vitling.settings.resolve import resolve

FEW = Facts(images=300, classes=6, own_val=60, side=500, gpu=False)


def plan(facts: Facts = FEW, **settings) -> TrainConfig:
    return plan_for(apply_overrides(TrainConfig(), settings), facts).config


def test_short_run_has_one_stage_a_small_resnet_and_weak_views():
    config = plan(minutes=1.0)
    assert (config.method, config.backbone, config.size, config.batch) == ("supervised", "resnet10t", VIEW, BATCH)
    assert config.optim.lr == RATE  # not lowered for the small batch
    assert (config.views.mixup, config.views.cutmix, config.views.erase) == (0, 0, 0)
    assert config.views.scale == (0.35, 1.0)
    assert config.loop.precision == "auto"
    assert plan(replace(FEW, bf16=True), minutes=1.0).loop.precision == "bf16"


def test_every_choice_is_printed_with_its_reason():
    draft = plan_for(TrainConfig(minutes=1.0), FEW)
    text = "\n".join(describe_plan(draft))
    for flag in ("--method supervised", "--backbone resnet10t", "--views.cutmix 0", "--optim.lr 0.001"):
        assert flag in text
    assert "about 18 epochs, too few to learn from mixed images" in text


def test_mixing_depends_on_the_expected_epochs():
    assert plan(minutes=1.0).views.cutmix == 0
    assert plan(minutes=10.0).views.mix_prob == 0.5
    assert plan(replace(FEW, images=2_000), minutes=10.0).views.cutmix == 0
    assert plan(replace(FEW, images=2_000, cores=8), minutes=10.0).views.mix_prob == 0.5
    assert plan(epochs=MIXED - 1).views.cutmix == 0  # no --minutes: its own epochs
    assert plan(epochs=MIXED).views.cutmix == 1


@pytest.mark.parametrize(("expected", "fitting", "mixed"), [(1.0, 200, True), (10.0, 7, False)])
def test_mixing_follows_the_measured_pace(expected, fitting, mixed):
    draft = plan_for(TrainConfig(minutes=expected), FEW)
    assert (draft.config.views.cutmix > 0) != mixed
    resolved = resolve(draft, replace(FEW, fit=Fit(fitting, "off")))
    assert (resolved.config.views.cutmix > 0) == mixed
    assert resolved.origins["views.cutmix"].layer == "pace"
    explicit = apply_overrides(TrainConfig(minutes=expected), {"views.cutmix": 0.7})
    assert resolve(plan_for(explicit, FEW), replace(FEW, fit=Fit(fitting, "off"))).config.views.cutmix == 0.7


def test_expected_epochs():
    config, facts = plan(minutes=2.0), replace(FEW, images=240)
    assert expect_epochs(config, facts) == pytest.approx(35)
    assert expect_epochs(config, replace(facts, bf16=True)) == pytest.approx(70)
    assert expect_epochs(replace(config, epochs=7), facts) == 7


def test_explicit_settings_win():
    config = plan(minutes=1.0, **{"views.mixup": 0.4, "backbone": "resnet18", "optim.lr": 3e-4, "batch": 64})
    assert (config.views.mixup, config.views.cutmix, config.views.erase) == (0.4, 1, 0.25)
    assert (config.backbone, config.optim.lr, config.batch) == ("resnet18", 3e-4, 64)
    assert plan(minutes=1.0, **{"views.policy": "idmm-finetune"}).views.cutmix == 1
    vit = plan(minutes=1.0, backbone="vit_nano_patch4_32")
    assert (vit.size, vit.views.cutmix) == (32, 0)
    assert plan(minutes=1.0, size=96).size == 96


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        (replace(FEW, pool=1_000), {}),
        (replace(FEW, gpu=True), {}),
        (replace(FEW, side=8), {}),
        (FEW, {"method": "idmm"}),
        (FEW, {"pretrain_epochs": 3}),
        (FEW, {"from_": "runs/other"}),
    ],
)
def test_other_runs_are_planned_as_before(facts, settings):
    config = plan(facts, **settings)
    assert config.backbone != "resnet10t"
    assert config.views.mixup == 0.8


def test_small_images_are_enlarged():
    draft = plan_for(TrainConfig(minutes=1.0), replace(FEW, side=32))
    assert draft.config.size == VIEW
    assert "enlarged" in draft.origins["size"].reason


def test_twin_needs_time():
    tested = replace(FEW, own_val=0, has_test=True)
    assert plan(tested, minutes=3.0).calibrate == "auto"
    assert plan(tested, minutes=60.0).calibrate == "on"
    assert plan(replace(tested, gpu=True), minutes=3.0).calibrate == "on"


def test_measured_pace_sets_part_of_an_epoch_and_evaluations():
    draft = plan_for(TrainConfig(minutes=1.0, size=64, backbone="resnet10t"), FEW)
    config = resolve(draft, replace(FEW, fit=Fit(8, "off", 0.75, 2))).config
    assert (config.epochs, config.loop.epoch_part, config.eval_every) == (8, 0.75, 4)
