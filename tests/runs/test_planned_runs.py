"""`vitling train` in two stages: planned, timed, interrupted, without labels."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from importlib import import_module

import pytest
from safetensors.torch import load_file

import vitling
from tests.conftest import make_folder, make_image
from tests.made_runs import lines, read, refused
from vitling.cli import run
from vitling.errors import Interrupted
from vitling.objectives.progress import Progress
from vitling.runs import train as recipe
from vitling.runs.pretrain import pretrain_in
from vitling.settings import plan as planning
from vitling.settings.config import PretrainConfig
from vitling.training.loop import Loop
from vitling.training.schedules import rise_and_fall

UNSAID = [  # nothing of a first stage
    *("--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16"),
    *("--loop.device", "cpu", "--loop.trackers", "none"),
]
TINY = [*UNSAID, "--size", "16", "--pretrain-size", "8"]
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
    assert config["pretrain_optim"]["lr"] == pytest.approx(3 * 5e-4 / 4)
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
    with monkeypatch.context() as patch:
        patch.setattr("vitling.training.loop.Loop.finish_epoch", _after(2 if stage == "first" else 4))
        assert train(images, out, *exact) == 143
    assert (out / "pretrain" / "result.json").exists() == (stage == "second")
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--out", "run", "--resume"]) == 0  # another spelling
    assert "Resuming" in ((out / "pretrain" if stage == "first" else out) / "log.txt").read_text()
    one, other = (load_file(path / "model" / "model.safetensors") for path in (whole, out))
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("module", ["pretrain", "labelled"])
def test_a_timed_run_goes_on_with_the_epochs_that_it_found(images, tmp_path, monkeypatch, module):
    """A second measurement would find others. What was given is the most, and may be given again."""
    out, folder = tmp_path / "run", tmp_path / "run" / ("pretrain" if module == "pretrain" else "")
    flags = [*TINY, "--method", "idmm", "--minutes", "0.6", "--epochs", "70", "--checkpoint.every-seconds", "0"]
    with monkeypatch.context() as patch:
        _stop_early(patch, module)
        assert train(images, out, *flags) == 143
    found = read(folder / "config.json")["epochs"]
    assert found > 1
    assert train(images, out, *flags, "--resume") == 0
    assert read(folder / "config.json")["epochs"] == read(folder / "result.json")["epochs"] == found


def _after(epochs):
    """Stops a run when so many epochs of it, in all stages, have ended and been saved."""
    end, ended = Loop.finish_epoch, []

    def finish_epoch(loop, *given):
        end(loop, *given)
        ended.append(1)
        if len(ended) == epochs:
            raise Interrupted("stopped", 143)

    return finish_epoch


def _stop_early(patch, module) -> None:
    """After an epoch, with a checkpoint."""
    fit = import_module(f"vitling.runs.{module}").fit

    def some(objective, store, config, watchers, **more):
        fit(objective, store, replace(config, epochs=1), (), **more)
        raise Interrupted("stopped", 143)

    patch.setattr(f"vitling.runs.{module}.fit", some)


def _interrupted(*given, **named):
    raise Interrupted("stopped", 143)


def test_a_finished_first_stage_is_not_trained_again(images, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("vitling.runs.labelled.fit", _interrupted)
        assert train(images, out, *SHORT) == 143
    monkeypatch.setattr("vitling.runs.pretrain.fit", lambda *given, **named: pytest.fail("again"))
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
    assert "single one" in said
    assert not (tmp_path / "run").exists()


def test_it_fits_into_the_time(images, tmp_path):
    began = time.monotonic()
    out, minutes = tmp_path / "run", 0.4
    assert train(images, out, *TINY, "--minutes", str(minutes), "--method", "idmm") == 0
    took = time.monotonic() - began
    assert took > 18 * minutes
    stages = read(out / "result.json")["stages"]
    assert all(stage["epochs"] >= 1 for stage in stages.values())
    assert took < 60 * minutes + 10
    log = (out / "log.txt").read_text() + (out / "pretrain" / "log.txt").read_text()
    assert log.count("s left to train") == 2
    assert read(out / "config.json")["epochs"] == stages["finetune"]["epochs"]


def test_a_first_stage_of_too_few_epochs_is_left_out(images, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(planning, "LEAST_SHARE", 1e4)
    assert train(images, out, *UNSAID, "--minutes", "0.15") == 0
    assert "The first stage is left out" in (out / "log.txt").read_text()
    assert not (out / "pretrain").exists()
    result = read(out / "result.json")
    assert (result["method"], "stages" in result) == ("supervised", False)
    saved = read(out / "config.json")
    assert (saved["method"], saved["pretrain_epochs"], saved["epochs"]) == ("supervised", None, result["epochs"])
    assert saved["views"]["policy"] == ""  # as with --method supervised
    (out / "result.json").unlink()  # as if it had been stopped before its end
    assert run(["train", "--out", str(out), "--resume"]) == 0
    assert read(out / "result.json")["last"] == result["last"]
    for said in (["--method", "idmm"], ["--pretrain-epochs", "2"], ["--preset", "released"]):
        assert train(images, tmp_path / said[1], *UNSAID, "--minutes", "0.01", *said) == 0
        assert "pretrain" in read(tmp_path / said[1] / "result.json")["stages"]


def test_a_stage_that_was_stopped_before_its_pace_was_known_is_left_out_all_the_same(images, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(planning, "LEAST_SHARE", 1e4)
    with monkeypatch.context() as patch:
        patch.setattr("vitling.runs.pretrain.fitted", _interrupted)
        assert train(images, out, *UNSAID, "--minutes", "0.05") == 143
    assert train(images, out, *UNSAID, "--minutes", "0.05", "--resume") == 0
    assert read(out / "result.json")["method"] == "supervised"


def test_a_time_that_is_too_short_is_said(images, tmp_path, capsys):
    flags = ["--minutes", "0.001", "--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16"]
    quiet = ["--loop.device", "cpu", "--loop.trackers", "none"]
    assert run(["pretrain", str(images), "--out", str(tmp_path / "run"), *flags, *quiet]) == 0
    assert re.search(
        r"too short for this: \d+ s went by before the training, and one epoch takes \d+ s", capsys.readouterr().err
    )
    assert read(tmp_path / "run" / "result.json")["epochs"] == 1
    assert "more than 0" in refused(capsys, "pretrain", images, "--out", tmp_path / "x", "--minutes", "0")


def test_the_first_stage_has_what_was_said_for_it(images, tmp_path):
    flags = ["--idmm.smoothing", "0.2", "--pretrain-optim.lr", "3e-3", "--preset", "released", "--seed", "5"]
    seen: list[PretrainConfig] = []

    def remember(config, *given, **named):
        seen.append(config)
        return pretrain_in(config, *given, **named)

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
        patch.setattr("vitling.runs.train.finetune_in", _interrupted)
        assert train(images, out, *SHORT, "--final-size", "32") == 143
    assert run(["train", "--out", str(out), "--resume"]) == 0
    result = read(out / "result.json")
    assert list(result["stages"]) == ["pretrain", "finetune", "large"]
    assert (result["stages"]["large"]["size"], result["stages"]["large"]["epochs"]) == (32, 3)
    large = read(out / "large" / "config.json")
    assert (large["batch"], large["optim"]["lr"]) == (16, pytest.approx(3 * 5e-5 / 8**0.5))  # 128 in the paper
    assert "Its head is kept" in (out / "large" / "log.txt").read_text()
    assert "large/" in capsys.readouterr().out
    assert run(["train", "--out", str(out), "--resume"]) == 0  # nothing is left to do
    assert read(out / "result.json") == result


@pytest.mark.parametrize("flags", [["--views.flip", "0"], ["--views.mixup", "0", "--views.crop-fraction", "1"]])
def test_views_of_ones_own_take_the_place_of_the_recipes(images, tmp_path, flags):
    assert train(images, tmp_path / "run", *SHORT, *flags) == 0
    views = read(tmp_path / "run" / "config.json")["views"]
    assert views["policy"] != "idmm-finetune"
    assert 0 in (views["flip"], views["mixup"])


WRONG = {
    "rate": ["--pretrain-optim.lr", "-1"],
    "size": ["--pretrain-size", "7"],
    "start": ["--method", "idmm", "--from", "nosuch.pt"],
    "schedule": ["--optim.schedule-epochs", "2"],
    "passes": ["--optim.accumulate", "64"],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_costs_nothing_of_what_is_there(images, tmp_path, capsys, what):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitling.runs.labelled.fit", _interrupted)
        assert train(images, out, *SHORT) == 143
    kept = (out / "pretrain" / "model" / "model.safetensors").read_bytes()
    said = refused(capsys, "train", images, "--out", out, *SHORT, "--overwrite", *WRONG[what])
    assert "--" in said or "nosuch.pt" in said
    assert (out / "pretrain" / "model" / "model.safetensors").read_bytes() == kept


def test_a_start_of_ones_own_is_the_first_stages(images, tmp_path):
    assert train(images, tmp_path / "one", *SHORT) == 0
    flags = [*SHORT, "--method", "idmm", "--from", str(tmp_path / "one"), "--pretrain-size", "16"]
    assert train(images, tmp_path / "two", *flags) == 0
    assert read(tmp_path / "two" / "config.json")["from_"] == str(tmp_path / "one")
    assert f"Started from {tmp_path / 'one'}:" in (tmp_path / "two" / "pretrain" / "log.txt").read_text()
    assert f"Started from {tmp_path / 'two' / 'pretrain'}:" in (tmp_path / "two" / "log.txt").read_text()
    assert train(images, tmp_path / "two", *flags, "--resume") == 0


def test_a_pre_training_of_ones_own_is_not_overwritten(images, tmp_path, capsys):
    flags = ["--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16", "--epochs", "1"]
    quiet = ["--loop.device", "cpu", "--loop.trackers", "none"]
    assert run(["pretrain", str(images), "--out", str(tmp_path / "exp" / "pretrain"), *flags, *quiet]) == 0
    assert "did not write" in refused(capsys, "train", images, "--out", tmp_path / "exp", "--overwrite", *SHORT)
    assert (tmp_path / "exp" / "pretrain" / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_run_that_goes_on_keeps_its_plan_and_a_new_one_has_one(images, tmp_path, monkeypatch, resume):
    """Whether --resume is said, as with --seeds where some are there already, is not what tells them apart."""
    out, seen = tmp_path / "run", []

    def train_in(config, run, processes, began, notes):
        seen.append((config.test_size, config.optim.lr))
        run.start(config, ())
        raise Interrupted("stopped", 143)

    monkeypatch.setattr(recipe, "train_in", train_in)
    monkeypatch.setattr(recipe, "look", lambda config, processes: planning.Sight(images=30, classes=3, longer=300))
    flags = ["--method", "supervised", "--loop.device", "cpu", "--loop.trackers", "none"]
    assert train(images, out, *flags, *resume) == 143
    assert seen[-1][0] == 288
    config = read(out / "config.json")
    config |= {"test_size": None, "optim": config["optim"] | {"lr": None}, "preset": "paper"}  # as before such plans
    (out / "config.json").write_text(json.dumps(config))
    assert run(["train", "--out", str(out), "--resume"]) == 143
    assert seen[-1] == (None, None)


def test_a_run_from_before_there_was_a_method_has_one_stage(images, tmp_path):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitling.training.loop.Loop.finish_epoch", _after(1))
        flags = ["--method", "supervised", "--size", "16", "--backbone", "vit_nano_patch4_32", "--epochs", "2"]
        quiet = ["--batch", "16", "--loop.device", "cpu", "--loop.trackers", "none", "--checkpoint.every-seconds", "0"]
        assert train(images, out, *flags, *quiet) == 143
    config = read(out / "config.json")
    for name in ("method", "preset", "pretrain_epochs", "pretrain_size", "idmm", "pretrain_optim", "minutes"):
        del config[name]
    (out / "config.json").write_text(json.dumps(config))
    assert run(["train", "--out", str(out), "--resume"]) == 0
    assert read(out / "result.json")["method"] == "supervised"
    assert not (out / "pretrain").exists()


def test_a_schedule_is_laid_out_for_the_epochs_that_fit(images, tmp_path, monkeypatch):
    seen = []

    def fit(objective, store, config, watchers, **more):
        seen.append(objective.weights["drloc"](Progress(config.epochs - 1, config.epochs, config.epochs)))
        raise Interrupted("stopped", 143)

    monkeypatch.setattr("vitling.runs.pretrain.fit", fit)
    flags = ["--size", "16", "--backbone", "vit_nano_patch4_32", "--batch", "16", "--epochs", "40", "--minutes", "0.15"]
    drloc = ["--aux", "drloc", "--drloc.schedule", "released", "--loop.device", "cpu", "--loop.trackers", "none"]
    assert run(["pretrain", str(images), "--out", str(tmp_path / "run"), *flags, *drloc]) == 143
    epochs = read(tmp_path / "run" / "config.json")["epochs"]
    expected = rise_and_fall(0.1, 20, epochs)(Progress(epochs - 1, epochs, epochs)) if epochs > 20 else None
    assert expected is None or seen[0] == pytest.approx(expected)


def test_what_must_not_be_mirrored_or_coloured_is_not_in_either_stage(images, tmp_path):
    flags = ["--views.flip", "0", "--data.channels", "4", "--pretrain-views.rotate", "10"]
    assert train(images, tmp_path / "run", *SHORT, *flags) == 0
    views = read(tmp_path / "run" / "pretrain" / "config.json")["views"]
    assert (views["flip"], views["colour"], views["rotate"]) == (0, False, 10)
    assert read(tmp_path / "run" / "config.json")["views"]["flip"] == 0
