"""`vitling train` in two stages: planned, timed, interrupted, without labels."""

from __future__ import annotations

import time

import pytest
from safetensors.torch import load_file

import vitling
from tests.conftest import make_folder, make_image
from tests.runs import lines, read, refused
from vitling.cli import run
from vitling.errors import Interrupted
from vitling.recipes import train as recipe
from vitling.recipes.config import FinetuneConfig, PretrainConfig
from vitling.recipes.pretrain import pretrain_in

TINY = [
    *("--size", "16", "--backbone", "vit_nano_patch4_32", "--pretrain-size", "8", "--batch", "16"),
    *("--loop.device", "cpu", "--loop.trackers", "none"),
]
SHORT = [*TINY, "--pretrain-epochs", "2", "--epochs", "3"]


def train(source, out, *flags) -> int:
    return run(["train", str(source), "--out", str(out), *flags])


@pytest.fixture
def images(tmp_path):
    """30 images in three classes, 6 more as test."""
    make_folder(tmp_path / "images", split="train")
    return make_folder(tmp_path / "images", each=2, split="test", first=50)


def test_two_stages_and_what_is_left_of_them(images, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(images, out, *SHORT) == 0
    said = capsys.readouterr()
    assert "--method idmm" in said.err + said.out
    assert "--val none" in said.err + said.out
    result = read(out / "result.json")
    assert result["method"] == "idmm"
    assert {name: stage["epochs"] for name, stage in result["stages"].items()} == {"pretrain": 2, "finetune": 3}
    assert "test" in result["last"]
    assert [line["epoch"] for line in lines(out / "metrics.jsonl")] == [1, 2, 3]
    assert "global" in lines(out / "pretrain" / "metrics.jsonl")[-1]
    config = read(out / "config.json")
    assert (config["views"]["policy"], config["optim"]["weight_decay"]) == ("idmm-finetune", 1e-3)
    assert config["pretrain_optim"]["lr"] == pytest.approx(5e-4 / 16)
    assert "Started from" in (out / "log.txt").read_text()
    assert run(["predict", str(out), str(next(images.glob("test/*/*.png")))]) == 0


def test_the_second_stage_starts_from_the_first(images, tmp_path):
    still = ["--optim.lr", "1e-12", "--optim.warmup-lr", "1e-12", "--optim.min-lr", "0"]
    assert train(images, tmp_path / "run", *SHORT, *still, "--pretrain-size", "16") == 0
    first, last = (load_file(tmp_path / "run" / part / "model.safetensors") for part in ("pretrain/model", "model"))
    body = [name for name in first if not name.startswith("head.")]
    assert len(body) > 30
    assert all((first[name] - last[name]).abs().max() < 1e-6 for name in body)


@pytest.mark.parametrize("stage", ["first", "second"])
def test_an_interrupted_run_goes_on_where_it_was(images, tmp_path, monkeypatch, stage):
    whole, out = tmp_path / "whole", tmp_path / "run"
    exact = [*SHORT, "--checkpoint.every-seconds", "0"]
    assert train(images, whole, *exact) == 0
    module = "vitling.recipes.pretrain" if stage == "first" else "vitling.recipes.labelled"
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.fit", _interrupted)
        assert train(images, out, *exact) == 143
    assert (out / "pretrain" / "result.json").exists() == (stage == "second")
    assert run(["train", "--out", str(out), "--resume"]) == 0
    one, other = (load_file(path / "model" / "model.safetensors") for path in (whole, out))
    assert all((one[name] == other[name]).all() for name in one)


def _interrupted(*given, **named):
    raise Interrupted("stopped", 143)


def test_a_finished_first_stage_is_not_trained_again(images, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("vitling.recipes.labelled.fit", _interrupted)
        assert train(images, out, *SHORT) == 143
    monkeypatch.setattr("vitling.recipes.pretrain.fit", lambda *given, **named: pytest.fail("again"))
    assert run(["train", "--out", str(out), "--resume"]) == 0


def test_images_without_labels_have_one_stage(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    for i in range(12):
        make_image(0, i).save(tmp_path / "images" / f"{i}.png")
    out = tmp_path / "run"
    assert train(tmp_path / "images", out, *TINY, "--pretrain-epochs", "2") == 0
    assert "no labels" in capsys.readouterr().out
    assert read(out / "result.json")["stages"].keys() == {"pretrain"}
    assert run(["embed", str(out), str(tmp_path / "images"), "--out", str(tmp_path / "f.npz")]) == 0
    said = refused(capsys, "train", tmp_path / "images", "--out", tmp_path / "other", "--method", "supervised", *TINY)
    assert "needs labels" in said
    assert not (tmp_path / "other").exists()


def test_a_pool_teaches_the_first_stage(tmp_path):
    folder = make_folder(tmp_path / "images", classes=2, each=8)
    (folder / "unlabelled").mkdir()
    for i in range(5):
        make_image(3, i).save(folder / "unlabelled" / f"{i}.png")
    result = vitling.train(
        folder,
        out=tmp_path / "run",
        size=16,
        backbone="vit_nano_patch4_32",
        pretrain_size=8,
        batch=16,
        epochs=1,
        **{"pretrain_epochs": 1, "val": "none", "loop.device": "cpu", "loop.trackers": "none"},
    )
    assert {name: stage["images"] for name, stage in result["stages"].items()} == {"pretrain": 21, "finetune": 16}


def test_a_second_stage_that_cannot_be_is_named_before_the_first(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recipe, "pretrain_in", lambda *given, **named: pytest.fail("the first stage was begun"))
    flags = ["--aux", "drloc", "--size", "4", "--pretrain-epochs", "2", "--epochs", "3", "--loop.device", "cpu"]
    said = refused(capsys, "train", images, "--out", tmp_path / "run", "--backbone", "vit_nano_patch4_32", *flags)
    assert said
    assert not (tmp_path / "run").exists()


def test_it_fits_into_the_time(images, tmp_path):
    began = time.monotonic()
    out, minutes = tmp_path / "run", 0.4
    assert train(images, out, *TINY, "--minutes", str(minutes)) == 0
    took = time.monotonic() - began
    stages = read(out / "result.json")["stages"]
    assert all(stage["epochs"] >= 1 for stage in stages.values())
    assert took < 60 * minutes + 6  # STARTING counts what a test has behind it
    log = (out / "log.txt").read_text() + (out / "pretrain" / "log.txt").read_text()
    assert log.count("s left to train") == 2
    assert read(out / "config.json")["epochs"] == stages["finetune"]["epochs"]


def test_a_time_that_is_too_short_is_said(images, tmp_path, capsys):
    flags = ["--minutes", "0.001", "--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16"]
    quiet = ["--loop.device", "cpu", "--loop.trackers", "none"]
    assert run(["pretrain", str(images), "--out", str(tmp_path / "run"), *flags, *quiet]) == 0
    assert "too short" in capsys.readouterr().err
    assert read(tmp_path / "run" / "result.json")["epochs"] == 1
    assert "more than 0" in refused(capsys, "pretrain", images, "--out", tmp_path / "x", "--minutes", "0")


def test_the_first_stage_has_what_was_said_for_it(images, tmp_path):
    flags = ["--idmm.smoothing", "0.2", "--pretrain-optim.lr", "3e-3", "--preset", "released", "--seed", "5"]
    seen: list[PretrainConfig] = []

    def remember(config, run, processes, began=None):
        seen.append(config)
        return pretrain_in(config, run, processes, began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "pretrain_in", remember)
        assert train(images, tmp_path / "run", *SHORT, *flags) == 0
    (config,) = seen
    assert (config.idmm.smoothing, config.optim.lr, config.preset, config.seed) == (0.2, 3e-3, "released", 5)
    assert (config.size, config.epochs, config.val) == (8, 2, "none")


def test_it_goes_on_at_a_larger_size(images, tmp_path, monkeypatch, capsys):
    """An interruption there costs nothing of what was before; the head goes along."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("vitling.recipes.train.finetune", _interrupted)
        assert train(images, out, *SHORT, "--final-size", "32") == 143
    patience = {"epochs": 2, "batch": 16}
    monkeypatch.setattr("vitling.recipes.train.FinetuneConfig", lambda **given: FinetuneConfig(**given | patience))
    assert run(["train", "--out", str(out), "--resume"]) == 0
    result = read(out / "result.json")
    assert list(result["stages"]) == ["pretrain", "finetune", "large"]
    assert result["stages"]["large"]["size"] == 32
    assert "Its head is kept" in (out / "large" / "log.txt").read_text()
    assert "large/ in it" in capsys.readouterr().out
    assert run(["train", "--out", str(out), "--resume"]) == 0  # nothing is left to do
    assert read(out / "result.json") == result
