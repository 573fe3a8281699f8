"""The plan of `vitling train`, for 200 to 100,000 images, with and without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.resolved import plan_for
from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.papers.drloc_recipes import scratch
from vitling.runs import demo
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.names import apply_overrides
from vitling.settings.plan import CPU_MINUTES, describe_plan, min_pretrain_epochs
from vitling.settings.resolve import resolve
from vitling.settings.stages import make_first_stage
from vitling.training.config import OptimConfig

FLOWERS = Facts(images=2040, classes=102, has_test=True, side=500, gpu=True)


def facts(**changes) -> Facts:
    return replace(FLOWERS, **changes)


def draft(seen: Facts = FLOWERS, **settings) -> Draft[TrainConfig]:
    return plan_for(apply_overrides(TrainConfig(), settings), seen)


def plan(seen: Facts = FLOWERS, **settings) -> TrainConfig:
    return draft(seen, **settings).config


def first(**settings) -> PretrainConfig:
    """Return the settings of the first stage before they are resolved."""
    return make_first_stage(draft(**settings), has_second=True).config


def second(**settings) -> TrainConfig:
    """Return the resolved settings of the second stage."""
    return resolve(draft(**settings), FLOWERS).config


def test_flowers_on_a_gpu_follow_the_paper():
    config = plan()
    assert (config.method, config.backbone) == ("idmm", "pvt_v2_b0")
    assert (config.pretrain_size, config.size, config.batch) == (112, 224, 256)
    assert (config.pretrain_epochs, config.epochs) == (800, 200)
    assert (config.val, config.minutes) == ("none", None)
    assert config.optim.lr is None  # the preset's


@pytest.mark.parametrize("images", [200, 1_000, 5_000, 20_000, 100_000])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("classes", [0, 5])
def test_every_plan_is_complete(images, gpu, classes):
    config = plan(facts(images=images, classes=classes, gpu=gpu))
    assert config.method in ("idmm", "supervised")
    assert config.backbone is not None
    assert 32 <= config.batch <= 256
    assert images / config.batch >= 6
    if config.method == "idmm":
        assert config.pretrain_epochs >= 50
        assert 32 <= config.pretrain_size <= config.size
    if classes:
        assert config.epochs >= 30
        assert config.val is not None
    assert (config.minutes == CPU_MINUTES) == (not gpu)


def test_more_images_get_fewer_passes_and_more_steps():
    few, many = (plan(facts(images=n)) for n in (2_000, 18_000))
    assert few.pretrain_epochs > many.pretrain_epochs
    assert few.epochs > many.epochs
    assert few.pretrain_epochs * 2_000 < many.pretrain_epochs * 18_000


def test_explicit_settings_win_and_others_adapt_to_them():
    config = plan(backbone="deit_tiny_patch16_224", batch=64, epochs=7, val="0.3", size=96)
    assert (config.backbone, config.batch, config.epochs, config.val, config.size) == (
        "deit_tiny_patch16_224", 64, 7, "0.3", 96,
    )  # fmt: skip
    assert config.pretrain_size == 64
    assert (
        config.pretrain_optim.lr == config.optim.lr == pytest.approx(5e-4 / 2)
    )  # scaled by the square root of the batch


def test_explicit_learning_rate_wins():
    config = plan(batch=64, optim=OptimConfig(lr=3e-3))
    assert config.optim.lr == 3e-3
    assert config.pretrain_optim.lr == pytest.approx(1e-3 / 2)
    simclr = plan(batch=64, method="simclr", pretrain_preset="paper", backbone="vit_nano_patch4_32")
    assert simclr.pretrain_optim.lr == pytest.approx(5e-4 / 8)  # SGD: proportional to the batch, at any width
    assert simclr.optim.lr == pytest.approx(3 * 5e-4 / 2)


def test_epochs_of_a_first_stage_that_must_fit_into_the_time():
    assert min_pretrain_epochs(plan(minutes=8.0)) == 100
    assert min_pretrain_epochs(plan(facts(images=4 * 2_040), minutes=8.0, val="none")) == 50
    assert min_pretrain_epochs(plan(facts(images=10**6, classes=0), minutes=8.0)) == 6


def test_narrow_networks_have_higher_learning_rates():
    for backbone, times in (("vit_nano_patch4_32", 3), ("vit_micro_patch4_32", 1.5)):
        config = plan(backbone=backbone, batch=128)
        assert config.optim.lr == config.pretrain_optim.lr == pytest.approx(times * 5e-4 * 0.5**0.5)
        assert plan(backbone=backbone, batch=256).optim.lr == pytest.approx(times * 5e-4)
        assert plan(backbone=backbone, optim=OptimConfig(lr=1e-4)).optim.lr == 1e-4
        assert plan(backbone=backbone, method="supervised", batch=128).optim.lr == config.optim.lr
    assert plan(backbone="deit_small_patch16_224").optim.lr is None  # the preset's
    assert plan(backbone="deit_small_patch16_224", method="supervised", batch=64).optim.lr == pytest.approx(5e-4 / 2)
    assert plan(backbone="vit_nano_patch4_32", method="supervised", optim=OptimConfig("sgd")).optim.lr is None
    assert plan(backbone="some_network_of_timm").optim.lr is None
    assert plan(backbone="pvt_v2_b0_small").optim.lr is None  # the table of widths has only plain ViTs


def test_method_depends_on_labels_pool_and_number_of_images():
    assert plan(facts(images=50_000)).method == "supervised"
    assert plan(facts(images=50_000, pool=10)).method == "idmm"
    assert plan(from_="runs/other").method == "supervised"
    assert plan(facts(classes=0)).method == "idmm"
    assert plan(method="supervised").pretrain_epochs is None


def test_hold_out_depends_on_the_splits():
    assert plan(facts(has_test=False)).val == "0.1"
    assert plan(facts(images=8_000)).val == "0.1"
    assert plan(facts(own_val=200)).val is None
    assert plan(**{"data.folds": 5}).val is None


@pytest.mark.parametrize(
    ("held", "settings"),
    [
        (400, {"val": "0.1"}),
        (1_000, {"val": "0.25"}),
        (0, {"val": "none"}),
        (800, {"data.folds": 5}),
        (600, {"own_val": 600}),
        (0, {"own_val": 600, "val": "none"}),
    ],
)
def test_held_out_images_are_not_counted(held, settings):
    own_val = settings.pop("own_val", 0)
    config = plan(facts(images=4_000, own_val=own_val), **settings)
    alone = plan(facts(images=4_000 - held), val="none")
    assert (config.epochs, config.pretrain_epochs, config.batch) == (alone.epochs, alone.pretrain_epochs, alone.batch)


def test_learning_rate_is_not_scaled_beyond_the_number_of_images():
    few = facts(images=128)
    assert plan(few, val="none", batch=4096).optim.lr == plan(few, val="none", batch=128).optim.lr


def test_sizes_depend_on_the_images():
    small = plan(facts(side=32))
    assert (small.size, small.pretrain_size, small.backbone) == (32, 32, "vit_micro_patch4_32")
    assert plan(facts(side=8)).size == 16
    assert plan(facts(side=100)).size == 128
    assert plan(facts(side=8, gpu=False)).backbone == "vit_nano_patch4_32"
    assert plan(facts(gpu=False), method="idmm").size == 96


def test_planned_epochs_are_an_upper_limit_with_minutes():
    config = plan(minutes=8.0)
    assert config.pretrain_epochs > 800
    assert config.epochs > 200
    assert plan(minutes=8.0, epochs=10).epochs == 10


def test_no_minutes_are_planned_for_explicit_epochs():
    lengths = {"epochs": 2, "pretrain_epochs": 3}
    assert plan(facts(gpu=False), **lengths).minutes is None
    assert plan(facts(gpu=False), epochs=2).minutes is None
    assert plan(facts(gpu=False), epochs=2, method="idmm").minutes == CPU_MINUTES


@pytest.mark.parametrize(("size", "first"), [(224, 112), (96, 64), (160, 96), (128, 64), (64, 64), (16, 16)])
def test_first_stage_has_half_the_size(size, first):
    assert plan(size=size).pretrain_size == first


@pytest.mark.parametrize(("images", "batch"), [(40, 32), (300, 32), (500, 64), (1_000, 128), (2_040, 256)])
def test_batch_depends_on_the_number_of_images(images, batch):
    assert plan(facts(images=images)).batch == batch


def test_settings_of_a_missing_first_stage_are_refused():
    for setting in (
        {"pretrain_epochs": 3},
        {"pretrain_optim.lr": 1.0},
        {"preset": "released"},
        {"idmm.smoothing": 0.2},
    ):
        with pytest.raises(UserError, match="is for two-stage runs"):
            plan(method="supervised", **setting)
        with pytest.raises(UserError, match="--method idmm"):
            plan(facts(images=50_000), **setting)


def test_learning_rate_does_not_depend_on_the_size():
    for size in (224, 448):
        rates = [second(size=size, batch=batch).optim.lr for batch in (256, 128)]
        assert rates == pytest.approx([1e-3, 1e-3 * 0.5**0.5])


def test_preset_is_released_for_networks_with_another_published_learning_rate():
    assert plan().preset == plan(backbone="t2t_vit_7").preset == "released"
    assert plan(preset="paper").preset == "paper"
    for other in ("deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        assert plan(backbone=other).preset == "paper"


def test_methods_differ_only_in_the_first_stage():
    methods = [method for method in METHODS if method != "supervised"]
    assert len({str(second(method=method).optim) for method in methods}) == 1
    assert {method for method in methods if first(method=method).preset == "released"} == {"idmm"}
    for settings, preset in (
        ({}, "adamw"),
        ({"preset": "paper"}, "adamw"),
        ({"pretrain_optim": OptimConfig(name="sgd")}, "paper"),
        ({"preset": "released", "pretrain_preset": "paper"}, "paper"),
    ):
        assert first(method="simclr", **settings).preset == preset
    assert first(method="idmm", preset="released", pretrain_preset="paper").preset == "paper"
    assert plan(method="supervised").optim.lr == second(method="idmm").optim.lr == 1e-3


def test_networks_without_positions_are_tested_on_larger_views():
    assert plan().test_size == 288
    assert plan(method="supervised").test_size == 288
    assert plan(test_size=256).test_size == 256
    assert plan(explicit=("test_size",)).test_size is None
    assert plan(facts(classes=0)).test_size is None
    assert plan(facts(side=180)).test_size is None  # their views are enlarged already
    for other in ({"backbone": "deit_tiny_patch16_224"}, {"size": 192}):
        assert plan(**other).test_size is None


def test_description_of_a_replaced_plan_has_only_new_choices():
    before, after = (plan_for(TrainConfig(method=method), FLOWERS) for method in ("idmm", "supervised"))
    assert any("--epochs 300" in line for line in describe_plan(after, before))
    assert not any("--batch" in line for line in describe_plan(after, before))
    assert describe_plan(before, before) == []


def test_each_choice_has_a_reason_and_a_flag():
    lines = describe_plan(draft())
    assert "--pretrain-epochs 800" in "\n".join(lines)
    assert all(len(line.split("  ")[-1]) > 3 for line in lines[1:])
    assert describe_plan(plan_for(plan(), FLOWERS)) == []  # nothing is left to choose


@pytest.mark.parametrize("gpu", [False, True])
def test_network_made_for_small_views_gets_them(gpu):
    config = plan(facts(gpu=gpu), backbone="vit_nano_patch4_32")
    assert (config.size, config.pretrain_size) == (32, 32 if gpu else None)
    assert plan(facts(gpu=gpu), backbone="vit_nano_patch4_32", size=64).size == 64


def test_transformers_are_trained_with_muon():
    config = plan()
    assert (config.optim.name, config.pretrain_optim.name) == ("muon", "muon")
    assert (config.optim.weight_decay, config.pretrain_optim.weight_decay) == (0.05, 0.05)
    assert second().optim.lr == 1e-3  # the preset's, which is for AdamW
    assert plan(method="dino").optim.name == "muon"
    assert plan(method="dino").pretrain_optim.name is None  # the method's own
    assert plan(facts(images=30_000)).optim.name == "muon"


@pytest.mark.parametrize(
    "settings",
    [
        {"preset": "released"},
        {"backbone": "resnet50", "method": "supervised"},
        {"from_": "weights.safetensors"},
        {"optim.final_weight_decay": 0.1, "pretrain_optim.final_weight_decay": 0.1},
    ],
)
def test_other_recipes_keep_their_optimiser(settings):
    config = plan(**settings)
    assert (config.optim.name, config.pretrain_optim.name) == (None, None)
    assert second(**settings).optim.weight_decay == (0.05 if config.method == "supervised" else 1e-3)


def test_a_preset_of_the_first_stage_keeps_its_optimiser_there():
    config = plan(pretrain_preset="paper", backbone="deit_tiny_patch16_224")
    assert (config.optim.name, config.pretrain_optim.name, config.init) == ("muon", None, "default")


@pytest.mark.parametrize(("name", "init"), [("muon", "mimetic"), ("adamw", "default")])
def test_without_labels_the_only_stage_decides_about_the_start(name, init):
    config = plan(facts(classes=0), backbone="deit_tiny_patch16_224", **{"pretrain_optim.name": name})
    assert (config.optim.name, config.pretrain_optim.name, config.init) == (None, name, init)


def test_explicit_optimisers_win():
    config = plan(**{"optim.name": "adamw"})
    assert (config.optim.name, config.pretrain_optim.name) == ("adamw", "muon")
    assert second(**{"optim.name": "adamw"}).optim.weight_decay == 1e-3
    assert second(**{"optim.name": "muon"}).optim == second().optim
    assert plan(**{"optim.weight_decay": 0.2}).optim.weight_decay == 0.2


@pytest.mark.parametrize(
    ("settings", "init"),
    [
        ({}, "mimetic"),
        ({"method": "supervised"}, "mimetic"),
        ({"init": "default"}, "default"),
        ({"preset": "paper"}, "default"),
        ({"from_": "weights.safetensors"}, "default"),
        ({"method": "dino"}, "default"),  # with AdamW it may collapse
        ({"pretrain_optim.name": "adamw"}, "default"),
        ({"backbone": "pvt_v2_b0"}, "default"),
        ({"backbone": "vit_base_patch16_224.drloc"}, "default"),
    ],
)
def test_plain_vits_start_from_mimetic_weights_with_muon(settings, init):
    explicit = {"backbone": "deit_tiny_patch16_224"} | settings
    request = replace(apply_overrides(TrainConfig(), explicit), explicit=tuple(explicit))
    assert plan_for(request, FLOWERS).config.init == init


@pytest.mark.parametrize("backbone", ["swin_tiny_patch4_window7_224", "deit_tiny_patch16_224"])
def test_recipes_of_papers_and_the_demo_are_not_planned(backbone):
    for recipe in (scratch(backbone), demo._LABELLED):
        config = plan_for(recipe, FLOWERS).config
        assert (config.optim.name, config.init) == (None, "default")


def test_epochs_of_a_missing_second_stage_are_refused():
    unlabelled = facts(classes=0, has_test=False)
    with pytest.raises(UserError, match=r"there are no labels\. Pass --pretrain-epochs 3\."):
        plan(unlabelled, epochs=3)
    config = plan(unlabelled, epochs=3, pretrain_epochs=5)
    assert (config.pretrain_epochs, config.epochs) == (5, 1)


@pytest.mark.parametrize(("size", "precision"), [(16, "auto"), (32, "bf16"), (None, "bf16")])
def test_bf16_on_a_cpu_is_for_maps_of_several_positions(size, precision):
    assert plan(facts(gpu=False, bf16=True), size=size).loop.precision == precision
