"""The settings of the EsViT paper, and how they adapt to fewer images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_runs import PRETRAIN_TINY as TINY
from tests.made_runs import pretrain, read, refused
from tests.resolved import resolve_for
from vitling.cli import run
from vitling.errors import UserError
from vitling.methods.dino.settings import dino_plan
from vitling.methods.esvit import settings as esvit
from vitling.methods.esvit.settings import EsViTConfig
from vitling.settings.config import PretrainConfig, TrainConfig
from vitling.settings.facts import Facts
from vitling.settings.layers import Draft
from vitling.settings.resolve import resolve
from vitling.settings.stages import make_first_stage

SWIN = {"swin-t": "swin_tiny_patch4_window7_224", "swin-s": "swin_small_patch4_window7_224"}
SMALL = ["--method", "esvit", "--esvit.hidden", "32", "--esvit.local-crops", "0"]


def test_settings_of_the_paper():
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
def test_settings_depend_on_the_number_of_images(images, epochs, batch, prototypes, teacher, match, momentum):
    """With as many images as ImageNet they are the paper's."""
    config = resolve_for(PretrainConfig(method="esvit", backbone="pvt_v2_b0"), images)
    assert (config.epochs, config.batch, config.esvit.prototypes) == (epochs, batch, prototypes)
    assert (config.esvit.teacher_temperature, config.esvit.match) == (teacher, match)
    assert all(group.return_boxes == (match == "place") for group in config.make_views(112).groups)
    assert config.esvit.momentum == pytest.approx(momentum, abs=1e-4)
    assert config.optim.peak_lr(config.batch) == pytest.approx(5e-4 * batch / 256)
    if images == esvit.IMAGENET:
        assert config.esvit == esvit.recipe().objective


def test_teacher_of_a_short_run_has_a_lower_momentum():
    momenta = [
        resolve_for(
            PretrainConfig(method="esvit", backbone="pvt_v2_b0", epochs=epochs, batch=100), 2_000
        ).esvit.momentum
        for epochs in (20, 100, 1000)
    ]
    assert momenta == pytest.approx([0.97, 0.9875, 0.996])


@pytest.mark.parametrize(
    ("weights", "explicit", "expected"),
    [
        ({}, (), (0.5, 0.5)),
        ({"region_weight": 0.0}, (), (1.0, 0.0)),
        ({"view_weight": 0.0}, (), (0.0, 1.0)),
        ({"region_weight": 0.0}, ("esvit.view_weight",), (0.5, 0.0)),
        ({"region_weight": 0.0, "view_weight": 0.3}, (), (0.3, 0.0)),
        ({"region_weight": 0.2}, (), (0.5, 0.2)),
    ],
)
def test_single_loss_has_the_weight_of_both(weights, explicit, expected):
    request = PretrainConfig(method="esvit", backbone="pvt_v2_b0", esvit=EsViTConfig(**weights), explicit=explicit)
    found = resolve_for(request, 2_000).esvit
    assert (found.view_weight, found.region_weight) == expected


@pytest.mark.parametrize("flags", [[], ["--esvit.momentum", "0.9"]])
def test_momentum_of_a_timed_run_depends_on_its_fitted_epochs(folder, tmp_path, flags):
    words = ["pretrain", str(folder), *TINY, *SMALL, "--epochs", "100000", "--minutes", "0.12", *flags]
    assert run([*words, "--out", str(tmp_path / "pre")]) == 0
    config = read(tmp_path / "pre" / "config.json")
    assert 1 <= config["epochs"] < 1000
    expected = 0.9 if flags else max(0.97, 1 - 25 / (2 * config["epochs"]))  # 30 images in batches of 16
    assert config["esvit"]["momentum"] == pytest.approx(expected)


def test_settings_adapted_to_the_images_are_logged(folder, tmp_path, capsys):
    assert pretrain(folder, tmp_path / "pre", *SMALL) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "For 30 images" in line]
    for flag in ("--esvit.prototypes 1024", "--esvit.momentum 0.97", "--esvit.match place"):
        assert flag in note
    assert pretrain(folder, tmp_path / "idmm") == 0
    assert "For 30 images" not in capsys.readouterr().err


def test_explicit_settings_win_over_adapted_ones():
    own = EsViTConfig(prototypes=512, momentum=0.9, region_from=3, teacher_temperature=0.07)
    config = resolve_for(PretrainConfig(method="esvit", backbone="pvt_v2_b0", epochs=7, batch=32, esvit=own), 2_000)
    assert (config.epochs, config.batch) == (7, 32)
    assert (config.esvit.prototypes, config.esvit.momentum, config.esvit.region_from) == (512, 0.9, 3)
    assert config.esvit.teacher_temperature == 0.07


@pytest.mark.parametrize("images", [2_000, esvit.IMAGENET])
@pytest.mark.parametrize("match", ["argmax", "place"])
def test_explicit_region_matching_wins(images, match):
    """One of the two is the default for this number of images."""
    request = PretrainConfig(
        method="esvit", backbone="pvt_v2_b0", esvit=EsViTConfig(match=match), explicit=("esvit.match",)
    )
    assert resolve_for(request, images).esvit.match == match


def read_match(out: Path) -> str:
    return read(out / "config.json")["esvit"]["match"]


def test_regions_of_rotated_views_are_matched_by_similarity(folder, tmp_path, capsys):
    rotated = [*SMALL, "--views.rotate", "10"]
    assert pretrain(folder, tmp_path / "pre", *rotated) == 0
    assert read_match(tmp_path / "pre") == "argmax"
    assert "Rotated views have no places" in capsys.readouterr().err
    words = ["pretrain", folder, "--out", tmp_path / "x", *rotated]
    assert "Leave out --views.rotate" in refused(capsys, *words, "--esvit.match", "place")
    for name, flags in (("views", ["--esvit.region-weight", "0"]), ("sinkhorn", ["--esvit.match", "sinkhorn"])):
        assert pretrain(folder, tmp_path / name, *rotated, *flags) == 0
        assert "no places" not in capsys.readouterr().err
    assert read_match(tmp_path / "sinkhorn") == "sinkhorn"


def test_rotated_views_of_the_first_of_two_stages(folder, tmp_path, capsys):
    words = ["train", str(folder), *TINY, *SMALL, "--epochs", "1", "--pretrain-epochs", "1"]
    words += ["--out", str(tmp_path / "run"), "--pretrain-views.rotate", "10"]
    message = refused(capsys, *words, "--esvit.match", "place")
    assert "--pretrain-views its --views" in message
    assert run(words) == 0
    assert read_match(tmp_path / "run" / "pretrain") == "argmax"


def test_continued_run_keeps_its_region_matching(folder, tmp_path, capsys):
    """A run without regions has no matching to keep."""
    for name, flags in (("argmax", ["--esvit.match", "argmax"]), ("views", ["--esvit.region-weight", "0"])):
        assert pretrain(folder, tmp_path / name, *SMALL, *flags, "--epochs", "1") == 0
    assert pretrain(folder, tmp_path / "a", *SMALL, "--continue-from", str(tmp_path / "argmax")) == 0
    assert pretrain(folder, tmp_path / "b", *SMALL, "--continue-from", str(tmp_path / "views")) == 0
    now = ["--continue-from", str(tmp_path / "argmax"), "--esvit.match", "place"]
    assert pretrain(folder, tmp_path / "c", *SMALL, *now) == 0
    assert [read_match(tmp_path / name) for name in "abc"] == ["argmax", "place", "place"]
    message = refused(capsys, "pretrain", "--out", tmp_path / "argmax", "--resume", "--esvit.match", "place")
    assert "differs from the run's argmax" in message


def test_stride_beyond_all_regions_is_refused(folder, tmp_path, capsys):
    words = ["pretrain", folder, "--out", tmp_path / "x", *TINY, *SMALL, "--epochs", "1", "--esvit.region-stride"]
    assert "a view has 2 regions" in refused(capsys, *words, "3")
    assert run([*map(str, words), "2"]) == 0


def test_views_budget_sets_the_epochs(folder, tmp_path, capsys):
    """30 images, two crops of each: 120 views are two epochs."""
    small = [*SMALL, "--views-budget", "121"]
    assert run(["pretrain", str(folder), "--out", str(tmp_path / "pre"), *TINY, *small]) == 0
    config = read(tmp_path / "pre" / "config.json")
    assert (config["epochs"], config["optim"]["final_weight_decay"]) == (2, 0.4)
    message = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *small, "--minutes", "1")
    assert "Leave one out" in message
    message = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *small, "--epochs", "2")
    assert "--views-budget and --epochs" in message
    assert "above 0" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", "--views-budget", "0")


def test_run_that_ends_before_its_regions_begin_is_refused(folder, tmp_path, capsys):
    words = ["pretrain", folder, "--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16", *SMALL]
    words += ["--loop.device", "cpu", "--loop.trackers", "none", "--out", tmp_path / "out", "--esvit.region-from"]
    message = refused(capsys, *words, "2", "--epochs", "2")
    assert "the run has 2 epochs" in message
    message = refused(capsys, *words, "700000", "--epochs", "800000", "--minutes", "0.01")  # as many as fit
    assert "never start" in message
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert run([*map(str, words), "1", "--epochs", "2"]) == 0


def test_regions_are_added_to_a_finished_dino_run(folder, tmp_path, capsys):
    """Two epochs of views, then two more of both, on the command line."""
    small = ["hidden", "32", "prototypes", "64", "local-crops", "0"]
    dino, both = (
        [f"--{name}.{word}" if i % 2 == 0 else word for i, word in enumerate(small)] for name in ("dino", "esvit")
    )
    assert pretrain(folder, tmp_path / "views", "--method", "dino", *dino, "--epochs", "2") == 0
    words = ["--method", "esvit", *both, "--epochs", "4", "--continue-from", str(tmp_path / "views")]
    assert pretrain(folder, tmp_path / "both", *words) == 0
    assert "Continuing at step 4 of 8" in (tmp_path / "both" / "log.txt").read_text()
    assert read(tmp_path / "both" / "result.json")["steps"] == 8
    message = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *TINY, *words, "--minutes", "1")
    assert "leave out --from and --minutes" in message


def test_continued_run_inherits_batch_store_size_and_heads(folder, tmp_path, capsys):
    """DINO has 4,096 prototypes and a batch of 512 by default; EsViT on 30 images has fewer of both."""
    words = ["--dino.hidden", "32", "--dino.local-crops", "0", "--epochs", "1", "--store-size", "11"]
    assert pretrain(folder, tmp_path / "views", "--method", "dino", *words) == 0
    both = ["--method", "esvit", "--esvit.local-crops", "0", "--epochs", "2"]
    both += ["--continue-from", str(tmp_path / "views")]
    assert pretrain(folder, tmp_path / "both", *both) == 0
    first, second = (read(tmp_path / name / "config.json") for name in ("views", "both"))
    assert second["batch"] == first["batch"]
    assert second["store_size"] == first["store_size"] == 11
    assert {name: second["esvit"][name] for name in ("prototypes", "hidden")} == {"prototypes": 4096, "hidden": 32}
    message = refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *both, "--esvit.hidden", "64")
    assert "--esvit.hidden 32" in message
    both[-1] = str(tmp_path / "nothing")
    assert "there is no such run" in refused(capsys, "pretrain", folder, "--out", tmp_path / "x", *both)


def test_regions_are_added_to_an_esvit_run_without_them(folder, tmp_path):
    """As in docs/esvit.md: only the weight and the epochs differ."""
    assert pretrain(folder, tmp_path / "views", *SMALL, "--epochs", "1", "--esvit.region-weight", "0") == 0
    assert pretrain(folder, tmp_path / "both", *SMALL, "--epochs", "2", "--continue-from", str(tmp_path / "views")) == 0
    assert "Continuing at step" in (tmp_path / "both" / "log.txt").read_text()


def test_explicit_stochastic_depth_wins_over_the_recipe():
    def depth(backbone, *explicit, drop_path=0.1):
        config = PretrainConfig(backbone=backbone, method="esvit", drop_path=drop_path, explicit=explicit)
        return resolve_for(config, 2_040).drop_path

    assert [depth(name) for name in (SWIN["swin-t"], SWIN["swin-s"], "resnet50")] == [0.1, 0.2, 0.0]
    assert depth(SWIN["swin-s"], "drop_path") == 0.1
    assert depth(SWIN["swin-s"], drop_path=0.3) == 0.3
    for explicit, expected in (((), 0.2), (("objective.drop_path",), 0.1)):
        train = TrainConfig(method="esvit", backbone=SWIN["swin-s"], explicit=explicit)
        assert resolve(make_first_stage(Draft(train), has_second=True), Facts(2_040)).config.drop_path == expected
