"""What `vitling train` chooses, from 200 images to 100,000, on cards and without."""

from __future__ import annotations

import pytest

from vitling.errors import UserError
from vitling.methods import METHODS
from vitling.runs.train import first_stage, second_stage
from vitling.settings.config import TrainConfig
from vitling.settings.names import saved_config, with_overrides
from vitling.settings.plan import CPU_MINUTES, Sight, least_of_first, make_plan
from vitling.training.config import OptimConfig

FLOWERS = Sight(images=2040, classes=102, test=True, longer=500, gpu=True)


def sight(**changes) -> Sight:
    return Sight(**{**FLOWERS.__dict__, **changes})


def plan(seen: Sight = FLOWERS, **settings) -> TrainConfig:
    return make_plan(with_overrides(TrainConfig(), settings), seen).config


def test_flowers_on_a_gpu_is_the_paper():
    config = plan()
    assert (config.method, config.backbone) == ("idmm", "pvt_v2_b0")
    assert (config.pretrain_size, config.size, config.batch) == (112, 224, 256)
    assert (config.pretrain_epochs, config.epochs) == (800, 200)
    assert (config.val, config.minutes) == ("none", None)
    assert config.optim.lr is None  # the preset's


@pytest.mark.parametrize("images", [200, 1_000, 5_000, 20_000, 100_000])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("classes", [0, 5])
def test_every_plan_is_whole(images, gpu, classes):
    config = plan(sight(images=images, classes=classes, gpu=gpu))
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
    few, many = (plan(sight(images=n)) for n in (2_000, 18_000))
    assert few.pretrain_epochs > many.pretrain_epochs
    assert few.epochs > many.epochs
    assert few.pretrain_epochs * 2_000 < many.pretrain_epochs * 18_000


def test_what_is_set_stays_and_others_follow():
    config = plan(backbone="deit_tiny_patch16_224", batch=64, epochs=7, val="0.3", size=96)
    assert (config.backbone, config.batch, config.epochs, config.val, config.size) == (
        "deit_tiny_patch16_224", 64, 7, "0.3", 96,
    )  # fmt: skip
    assert config.pretrain_size == 64
    assert config.pretrain_optim.lr == config.optim.lr == pytest.approx(5e-4 / 2)  # by the root of the batch


def test_a_rate_of_ones_own_stays():
    config = plan(batch=64, optim=OptimConfig(lr=3e-3))
    assert config.optim.lr == 3e-3
    assert config.pretrain_optim.lr == pytest.approx(1e-3 / 2)
    simclr = plan(batch=64, method="simclr", pretrain_preset="paper", backbone="vit_nano_patch4_32")
    assert simclr.pretrain_optim.lr == pytest.approx(5e-4 / 8)  # SGD's, in proportion, at any width
    assert simclr.optim.lr == pytest.approx(3 * 5e-4 / 2)


def test_how_much_of_a_first_stage_must_fit_into_the_time():
    assert least_of_first(plan(minutes=8.0)) == 100
    assert least_of_first(plan(sight(images=4 * 2_040), minutes=8.0)) == 50
    assert least_of_first(plan(sight(images=10**6, classes=0), minutes=8.0)) == 6


def test_narrow_networks_have_larger_rates():
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
    assert plan(backbone="pvt_v2_b0_small").optim.lr is None  # narrow at its end alone says little


def test_method_by_what_there_is():
    assert plan(sight(images=50_000)).method == "supervised"
    assert plan(sight(images=50_000, pool=10)).method == "idmm"
    assert plan(from_="runs/other").method == "supervised"
    assert plan(sight(classes=0)).method == "idmm"
    assert plan(method="supervised").pretrain_epochs is None


def test_validation_by_what_there_is():
    assert plan(sight(test=False)).val == "0.1"
    assert plan(sight(images=8_000)).val == "0.1"
    assert plan(sight(own_val=True)).val is None
    assert plan(**{"data.folds": 5}).val is None


def test_sizes_by_what_the_images_have():
    small = plan(sight(longer=32))
    assert (small.size, small.pretrain_size, small.backbone) == (32, 32, "vit_micro_patch4_32")
    assert plan(sight(longer=8)).size == 16
    assert plan(sight(longer=100)).size == 128
    assert plan(sight(longer=32, gpu=False)).backbone == "vit_nano_patch4_32"
    assert plan(sight(gpu=False)).size == 96


def test_epochs_are_a_limit_where_there_is_a_time():
    config = plan(minutes=8.0)
    assert config.pretrain_epochs > 800
    assert config.epochs > 200
    assert plan(minutes=8.0, epochs=10).epochs == 10


def test_no_time_is_set_where_the_lengths_are():
    lengths = {"epochs": 2, "pretrain_epochs": 3}
    assert plan(sight(gpu=False), **lengths).minutes is None
    assert plan(sight(gpu=False), epochs=2).minutes == CPU_MINUTES


@pytest.mark.parametrize(("size", "first"), [(224, 112), (96, 64), (160, 96), (128, 64), (64, 64), (16, 16)])
def test_the_first_stage_has_half_the_size(size, first):
    assert plan(size=size).pretrain_size == first


@pytest.mark.parametrize(("images", "batch"), [(40, 32), (300, 32), (500, 64), (1_000, 128), (2_040, 256)])
def test_batches(images, batch):
    assert plan(sight(images=images)).batch == batch


def test_what_is_said_of_a_stage_that_there_is_not_is_an_error():
    for setting in (
        {"pretrain_epochs": 3},
        {"pretrain_optim.lr": 1.0},
        {"preset": "released"},
        {"idmm.smoothing": 0.2},
    ):
        with pytest.raises(UserError, match="belongs to the two stages"):
            plan(method="supervised", **setting)
        with pytest.raises(UserError, match="--method idmm"):
            plan(sight(images=50_000), **setting)


def test_one_rule_for_the_rate_at_any_size():
    for size in (224, 448):
        rates = [second_stage(plan(size=size, batch=batch)).optim.lr for batch in (256, 128)]
        assert rates == pytest.approx([1e-3, 1e-3 * 0.5**0.5])


def test_the_preset_is_that_of_the_code_for_networks_that_it_has_another_rate_for():
    assert plan().preset == plan(backbone="t2t_vit_7").preset == "released"
    assert plan(preset="paper").preset == "paper"
    for other in ("deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        assert plan(backbone=other).preset == "paper"


@pytest.mark.parametrize(
    ("method", "saved", "kept"),
    [("simclr", "auto", "paper"), ("idmm", "released", "released"), ("supervised", "paper", "paper")],
)
def test_runs_of_before_keep_the_preset_that_they_had(method, saved, kept):
    values = {"method": method, "preset": saved, "backbone": "pvt_v2_b0"}
    config = saved_config(TrainConfig, values)
    assert config.second_preset == kept
    assert config.first_preset == ("paper" if method == "simclr" else kept)


def test_methods_differ_in_the_first_stage_alone():
    two = {method: plan(method=method) for method in METHODS if method != "supervised"}
    assert len({str(second_stage(config).optim) for config in two.values()}) == 1
    assert {m for m, config in two.items() if first_stage(config).preset == "released"} == {"idmm"}
    first = {"nothing": {}, "both": {"preset": "paper"}, "SGD": {"pretrain_optim": OptimConfig(name="sgd")}}
    found = {name: first_stage(plan(method="simclr", **said)).preset for name, said in first.items()}
    assert found == {"nothing": "adamw", "both": "adamw", "SGD": "paper"}
    assert first_stage(plan(method="simclr", preset="released", pretrain_preset="paper")).preset == "paper"
    assert first_stage(plan(method="idmm", preset="released", pretrain_preset="paper")).preset == "paper"
    assert plan(method="supervised").optim.lr == second_stage(two["idmm"]).optim.lr == 1e-3


def test_networks_without_positions_are_judged_on_larger_views():
    assert plan().test_size == 288
    assert plan(method="supervised").test_size == 288
    assert plan(test_size=256).test_size == 256
    assert plan(said=("test_size",)).test_size is None
    assert plan(sight(classes=0)).test_size is None
    assert plan(sight(longer=180)).test_size is None  # their views are enlarged already
    for other in ({"backbone": "deit_tiny_patch16_224"}, {"size": 192}):
        assert plan(**other).test_size is None


def test_of_a_plan_that_takes_the_place_of_another_what_is_new_is_said():
    before, after = (make_plan(TrainConfig(method=method), FLOWERS) for method in ("idmm", "supervised"))
    assert ["--epochs 300" in line for line in after.in_words(before)] == [False, True]
    assert before.in_words(before) == []


def test_each_choice_has_a_reason_and_a_flag():
    words = make_plan(TrainConfig(), FLOWERS).in_words()
    assert "--pretrain-epochs 800" in "\n".join(words)
    assert all(len(line.split("  ")[-1]) > 3 for line in words[1:])
    assert make_plan(plan(), FLOWERS).in_words() == []  # nothing is left to choose: a resume


@pytest.mark.parametrize("gpu", [False, True])
def test_a_network_for_small_views_gets_small_views(gpu):
    config = plan(sight(gpu=gpu), backbone="vit_nano_patch4_32")
    assert (config.size, config.pretrain_size) == (32, 32)
    assert plan(sight(gpu=gpu), backbone="vit_nano_patch4_32", size=64).size == 64
