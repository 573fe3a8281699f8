"""The settings of the EsViT paper, and what becomes of them for fewer images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.made_runs import read, refused
from tests.runs.test_two_stages import TINY, pretrain
from vitling.cli import run
from vitling.errors import UserError
from vitling.methods import esvit
from vitling.methods.dino import dino_plan
from vitling.methods.esvit import EsViTConfig
from vitling.methods.registry import plan_of
from vitling.runs.pretrain import _with_preset
from vitling.runs.train import first_stage
from vitling.settings.config import PretrainConfig, TrainConfig

SWIN = {"swin-t": "swin_tiny_patch4_window7_224", "swin-s": "swin_small_patch4_window7_224"}
SMALL = ["--method", "esvit", "--esvit.hidden", "32", "--esvit.local-crops", "0"]


def test_the_settings_of_the_paper():
    stage = esvit.recipe()
    plan = dino_plan(stage.objective, stage.size)
    optim, objective = stage.optim, stage.objective
    assert (stage.batch, stage.epochs, stage.size, plan.crops) == (512, 300, 224, 10)
    assert (optim.peak_lr(512), optim.min_lr, optim.warmup_epochs) == (1e-3, 1e-6, 10)
    assert (optim.weight_decay, optim.final_weight_decay, optim.clip, optim.clip_per) == (0.04, 0.4, 3.0, "tensor")
    assert (objective.prototypes, objective.hidden, objective.bottleneck) == (65_536, 2048, 256)
    assert (objective.temperature, objective.teacher_start, objective.teacher_temperature) == (0.1, 0.04, 0.07)
    assert (objective.teacher_warmup, objective.momentum, objective.centre) == (0.1, 0.996, 0.9)
    assert (objective.view_weight, objective.region_weight, objective.region_from) == (0.5, 0.5, 0)
    assert [group.size for group in plan.groups] == [224, 224, 96]
    with pytest.raises(UserError, match="no preset"):
        esvit.recipe(preset="released")


@pytest.mark.parametrize(
    ("images", "epochs", "batch", "prototypes", "teacher", "match", "momentum"),
    [
        (300, 1067, 64, 1024, 0.04, "place", 0.9953),
        (2_000, 800, 64, 4096, 0.04, "place", 0.996),
        (10_000, 627, 256, 16_384, 0.04, "place", 0.996),
        (esvit.IMAGENET, 300, 512, 65_536, 0.07, "argmax", 0.996),
    ],
)
def test_settings_by_the_number_of_images(images, epochs, batch, prototypes, teacher, match, momentum):
    """At ImageNet's they are the paper's."""
    config = _with_preset(PretrainConfig(method="esvit", backbone="pvt_v2_b0"), images)
    assert (config.epochs, config.batch, config.esvit.prototypes) == (epochs, batch, prototypes)
    assert (config.esvit.teacher_temperature, config.esvit.match) == (teacher, match)
    assert all(group.return_boxes == (match == "place") for group in plan_of(config, 112).groups)
    assert config.esvit.momentum == pytest.approx(momentum, abs=1e-4)
    assert config.optim.peak_lr(config.batch) == pytest.approx(5e-4 * batch / 256)
    if images == esvit.IMAGENET:
        assert config.esvit == esvit.recipe().objective


def test_short_runs_have_a_teacher_that_follows_sooner():
    momenta = [
        _with_preset(
            PretrainConfig(method="esvit", backbone="pvt_v2_b0", epochs=epochs, batch=100), 2_000
        ).esvit.momentum
        for epochs in (20, 100, 1000)
    ]
    assert momenta == pytest.approx([0.97, 0.9875, 0.996])


@pytest.mark.parametrize(
    ("weights", "said", "expected"),
    [
        ({}, (), (0.5, 0.5)),
        ({"region_weight": 0.0}, (), (1.0, 0.0)),
        ({"view_weight": 0.0}, (), (0.0, 1.0)),
        ({"region_weight": 0.0}, ("esvit.view_weight",), (0.5, 0.0)),
        ({"region_weight": 0.0, "view_weight": 0.3}, (), (0.3, 0.0)),
        ({"region_weight": 0.2}, (), (0.5, 0.2)),
    ],
)
def test_a_loss_that_is_left_alone_has_the_weight_of_both(weights, said, expected):
    asked = PretrainConfig(method="esvit", backbone="pvt_v2_b0", esvit=EsViTConfig(**weights), said=said)
    found = _with_preset(asked, 2_000).esvit
    assert (found.view_weight, found.region_weight) == expected


@pytest.mark.parametrize("said", [[], ["--esvit.momentum", "0.9"]])
def test_a_run_of_some_minutes_has_the_teacher_of_its_epochs(folder, tmp_path, said):
    words = ["pretrain", str(folder), *TINY, *SMALL, "--epochs", "100000", "--minutes", "0.12", *said]
    assert run([*words, "--out", str(tmp_path / "pre")]) == 0
    config = read(tmp_path / "pre" / "config.json")
    assert 1 <= config["epochs"] < 1000
    expected = 0.9 if said else max(0.97, 1 - 25 / (2 * config["epochs"]))  # 30 images in batches of 16
    assert config["esvit"]["momentum"] == pytest.approx(expected)


def test_what_depends_on_the_images_is_said(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "pre", *SMALL) == 0
    assert "For 30 images: --esvit.prototypes 1024 --esvit.momentum 0.97 --esvit.match place" in capsys.readouterr().err
    assert pretrain(folder, tmp_path / "idmm") == 0
    assert "For 30 images" not in capsys.readouterr().err


def test_what_is_asked_for_goes_before():
    asked = EsViTConfig(prototypes=512, momentum=0.9, region_from=3, teacher_temperature=0.07)
    config = _with_preset(PretrainConfig(method="esvit", backbone="pvt_v2_b0", epochs=7, batch=32, esvit=asked), 2_000)
    assert (config.epochs, config.batch) == (7, 32)
    assert (config.esvit.prototypes, config.esvit.momentum, config.esvit.region_from) == (512, 0.9, 3)
    assert config.esvit.teacher_temperature == 0.07


@pytest.mark.parametrize("images", [2_000, esvit.IMAGENET])
@pytest.mark.parametrize("match", ["argmax", "place"])
def test_regions_are_matched_as_was_said(images, match):
    """One of the two is what the number of images would give."""
    asked = PretrainConfig(method="esvit", backbone="pvt_v2_b0", esvit=EsViTConfig(match=match), said=("esvit.match",))
    assert _with_preset(asked, images).esvit.match == match


def matched(out: Path) -> str:
    return read(out / "config.json")["esvit"]["match"]


def test_views_that_are_turned_are_matched_by_likeness(folder, tmp_path, capsys):
    turned = [*SMALL, "--views.rotate", "10"]
    assert pretrain(folder, tmp_path / "pre", *turned) == 0
    assert matched(tmp_path / "pre") == "argmax"
    assert "Views that are turned have no places" in capsys.readouterr().err
    words = ["pretrain", folder, "--out", tmp_path / "x", *turned]
    assert "Leave out --views.rotate" in refused(capsys, *words, "--esvit.match", "place")
    for name, said in (("views", ["--esvit.region-weight", "0"]), ("sinkhorn", ["--esvit.match", "sinkhorn"])):
        assert pretrain(folder, tmp_path / name, *turned, *said) == 0
        assert "no places" not in capsys.readouterr().err
    assert matched(tmp_path / "sinkhorn") == "sinkhorn"


def test_turned_views_of_the_first_of_two_stages(folder, tmp_path, capsys):
    words = ["train", str(folder), *TINY, *SMALL, "--epochs", "1", "--pretrain-epochs", "1"]
    words += ["--out", str(tmp_path / "run"), "--pretrain-views.rotate", "10"]
    said = refused(capsys, *words, "--esvit.match", "place")
    assert "--pretrain-views its --views" in said
    assert run(words) == 0
    assert matched(tmp_path / "run" / "pretrain") == "argmax"


def test_a_run_goes_on_matching_regions_as_it_did(folder, tmp_path, capsys):
    """Of one without regions there is nothing to keep."""
    for name, said in (("alike", ["--esvit.match", "argmax"]), ("views", ["--esvit.region-weight", "0"])):
        assert pretrain(folder, tmp_path / name, *SMALL, *said, "--epochs", "1") == 0
    assert pretrain(folder, tmp_path / "a", *SMALL, "--continue-from", str(tmp_path / "alike")) == 0
    assert pretrain(folder, tmp_path / "b", *SMALL, "--continue-from", str(tmp_path / "views")) == 0
    now = ["--continue-from", str(tmp_path / "alike"), "--esvit.match", "place"]
    assert pretrain(folder, tmp_path / "c", *SMALL, *now) == 0
    assert [matched(tmp_path / name) for name in "abc"] == ["argmax", "place", "place"]
    said = refused(capsys, "pretrain", "--out", tmp_path / "alike", "--resume", "--esvit.match", "place")
    assert "this run was started with argmax" in said


def test_a_stride_over_all_regions_is_refused(folder, tmp_path, capsys):
    words = ["pretrain", folder, "--out", tmp_path / "x", *TINY, *SMALL, "--epochs", "1", "--esvit.region-stride"]
    assert "a view has 2 regions" in refused(capsys, *words, "3")
    assert run([*map(str, words), "2"]) == 0


def test_a_budget_of_views_sets_the_epochs(folder, tmp_path, capsys):
    """30 images, two crops of each: 120 views are two epochs."""
    small = ["--method", "esvit", "--esvit.hidden", "32", "--esvit.local-crops", "0", "--views-budget", "121"]
    assert run(["pretrain", str(folder), "--out", str(tmp_path / "pre"), *TINY, *small]) == 0
    config = read(tmp_path / "pre" / "config.json")
    assert (config["epochs"], config["optim"]["final_weight_decay"]) == (2, 0.4)
    said = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *small, "--minutes", "1")
    assert "Leave one out" in said
    said = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *small, "--epochs", "2")
    assert "--views-budget and --epochs" in said
    assert "more than 0" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", "--views-budget", "0")


def test_a_run_that_ends_before_its_regions_begin_is_refused(folder, tmp_path, capsys):
    small = ["--method", "esvit", "--esvit.hidden", "32", "--esvit.prototypes", "64", "--esvit.local-crops", "0"]
    words = ["pretrain", folder, "--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16", *small]
    words += ["--loop.device", "cpu", "--loop.trackers", "none", "--out", tmp_path / "out", "--esvit.region-from"]
    said = refused(capsys, *words, "2", "--epochs", "2")
    assert "the run has 2 epochs" in said
    said = refused(capsys, *words, "700000", "--epochs", "800000", "--minutes", "0.01")  # as many as fit
    assert "never be switched on" in said
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert run([*map(str, words), "1", "--epochs", "2"]) == 0


def test_regions_are_added_to_a_finished_run_of_dino(folder, tmp_path, capsys):
    """By the commands: two epochs of views, then two more of both."""
    small = ["hidden", "32", "prototypes", "64", "local-crops", "0"]
    dino, both = (
        [f"--{name}.{word}" if i % 2 == 0 else word for i, word in enumerate(small)] for name in ("dino", "esvit")
    )
    assert pretrain(folder, tmp_path / "views", "--method", "dino", *dino, "--epochs", "2") == 0
    words = ["--method", "esvit", *both, "--epochs", "4", "--continue-from", str(tmp_path / "views")]
    assert pretrain(folder, tmp_path / "both", *words) == 0
    assert "Continuing at step 4 of 8" in (tmp_path / "both" / "log.txt").read_text()
    assert read(tmp_path / "both" / "result.json")["steps"] == 8
    said = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *words, "--minutes", "1")
    assert "leave out --from and --minutes" in said


def test_a_run_goes_on_with_the_batch_the_store_and_the_heads_of_the_first(folder, tmp_path, capsys):
    """DINO has 4,096 prototypes and batches of 512 by itself, EsViT on 30 images has fewer of both."""
    words = ["--dino.hidden", "32", "--dino.local-crops", "0", "--epochs", "1", "--store-size", "11"]
    assert pretrain(folder, tmp_path / "views", "--method", "dino", *words) == 0
    both = ["--method", "esvit", "--esvit.local-crops", "0", "--epochs", "2"]
    both += ["--continue-from", str(tmp_path / "views")]
    assert pretrain(folder, tmp_path / "both", *both) == 0
    first, second = (read(tmp_path / name / "config.json") for name in ("views", "both"))
    assert second["batch"] == first["batch"]
    assert second["store_size"] == first["store_size"] == 11
    assert {name: second["esvit"][name] for name in ("prototypes", "hidden")} == {"prototypes": 4096, "hidden": 32}
    said = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *both, "--esvit.hidden", "64")
    assert "--esvit.hidden 32" in said
    both[-1] = str(tmp_path / "nothing")
    assert "there is no such run" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *both)


def test_regions_are_added_to_a_run_of_esvit_without_them(folder, tmp_path):
    """As docs/esvit.md has it: nothing but the weight and the epochs differ."""
    words = ["--method", "esvit", "--esvit.hidden", "32", "--esvit.local-crops", "0"]
    assert pretrain(folder, tmp_path / "views", *words, "--epochs", "1", "--esvit.region-weight", "0") == 0
    assert pretrain(folder, tmp_path / "both", *words, "--epochs", "2", "--continue-from", str(tmp_path / "views")) == 0
    assert "Continuing at step" in (tmp_path / "both" / "log.txt").read_text()


def test_stochastic_depth_is_the_recipes_unless_it_is_said():
    def settled(backbone, *said, drop_path=0.1):
        config = PretrainConfig(backbone=backbone, method="esvit", drop_path=drop_path, said=said)
        return _with_preset(config, 2_040).drop_path

    assert [settled(name) for name in (SWIN["swin-t"], SWIN["swin-s"], "resnet50")] == [0.1, 0.2, 0.0]
    assert settled(SWIN["swin-s"], "drop_path") == 0.1
    assert settled(SWIN["swin-s"], drop_path=0.3) == 0.3
    for said in ((), ("objective.drop_path",)):
        train = TrainConfig(method="esvit", backbone=SWIN["swin-s"], said=said)
        assert _with_preset(replace(first_stage(train), epochs=1), 2_040).drop_path == (0.1 if said else 0.2)
