"""`vitling train` in two stages: planned, timed, interrupted, without labels."""

from __future__ import annotations

import json
import re
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
from vitling.settings.facts import Facts
from vitling.training.loop import Loop
from vitling.training.schedules import rise_and_fall

WITHOUT_FIRST = [  # no flag of the first stage
    *("--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16"),
    *("--loop.device", "cpu", "--loop.trackers", "none"),
]
TINY = [*WITHOUT_FIRST, "--size", "16", "--pretrain-size", "8"]
SHORT = [*TINY, "--pretrain-epochs", "2", "--epochs", "3"]


def train(source, out, *flags) -> int:
    return run(["train", str(source), "--out", str(out), "--no-report", *flags])


@pytest.fixture
def images(tmp_path):
    """30 images in three classes, 6 more as test."""
    make_folder(tmp_path / "images", split="train")
    return make_folder(tmp_path / "images", each=2, split="test", first=50)


def test_two_stages_and_their_files(images, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(images, out, *SHORT) == 0
    output = capsys.readouterr()
    assert "--method idmm" in output.err + output.out
    assert "--val none" in output.err + output.out
    result = read(out / "result.json")
    assert result["method"] == "idmm"
    assert {name: stage["epochs"] for name, stage in result["stages"].items()} == {"pretrain": 2, "finetune": 3}
    assert "test" in result["last"]
    assert [line["epoch"] for line in lines(out / "metrics.jsonl")] == [1, 2, 3]
    assert "global" in lines(out / "pretrain" / "metrics.jsonl")[-1]
    config = read(out / "config.json")
    assert (config["views"]["policy"], config["optim"]["clip"]) == ("idmm-finetune", 0.0)
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
def test_interrupted_run_resumes_exactly(images, tmp_path, monkeypatch, stage):
    whole, out = tmp_path / "whole", tmp_path / "run"
    exact = [*SHORT, "--checkpoint.every-seconds", "0"]
    assert train(images, whole, *exact) == 0
    with monkeypatch.context() as patch:
        patch.setattr("vitling.training.loop.Loop.finish_epoch", _stop_after(2 if stage == "first" else 4))
        assert train(images, out, *exact) == 143
    assert (out / "pretrain" / "result.json").exists() == (stage == "second")
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--out", "run", "--resume"]) == 0  # another spelling
    assert "Resuming" in ((out / "pretrain" if stage == "first" else out) / "log.txt").read_text()
    one, other = (load_file(path / "model" / "model.safetensors") for path in (whole, out))
    assert all((one[name] == other[name]).all() for name in one)


@pytest.mark.parametrize("module", ["pretrain", "labelled"])
def test_resumed_timed_run_keeps_its_epochs(images, tmp_path, monkeypatch, module):
    """A second measurement would find others. --epochs is an upper limit and may be passed again."""
    out, folder = tmp_path / "run", tmp_path / "run" / ("pretrain" if module == "pretrain" else "")
    flags = [*TINY, "--method", "idmm", "--minutes", "0.6", "--epochs", "70", "--checkpoint.every-seconds", "0"]
    with monkeypatch.context() as patch:
        _stop_early(patch, module)
        assert train(images, out, *flags) == 143
    found = read(folder / "config.json")["epochs"]
    assert found > 1
    assert train(images, out, *flags, "--resume") == 0
    assert read(folder / "config.json")["epochs"] == read(folder / "result.json")["epochs"] == found


def _stop_after(epochs):
    """Stop a run after this many epochs, counted over all stages, with a checkpoint."""
    end, ended = Loop.finish_epoch, []

    def finish_epoch(loop, *given):
        end(loop, *given)
        ended.append(1)
        if len(ended) == epochs:
            raise Interrupted("stopped", 143)

    return finish_epoch


def _stop_early(patch, module) -> None:
    """Stop after one epoch, with a checkpoint."""
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
    message = refused(
        capsys, "train", tmp_path / "images", "--out", tmp_path / "other", "--method", "supervised", *TINY
    )
    assert "needs labels" in message
    assert not (tmp_path / "other").exists()


def test_first_stage_uses_the_pool(tmp_path):
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


def test_impossible_second_stage_is_refused_before_the_first(images, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recipe, "pretrain_in", lambda *given, **named: pytest.fail("the first stage was begun"))
    flags = ["--aux", "drloc", "--size", "4", "--pretrain-epochs", "2", "--epochs", "3", "--loop.device", "cpu"]
    message = refused(capsys, "train", images, "--out", tmp_path / "run", "--backbone", "vit_nano_patch4_32", *flags)
    assert "two tokens" in message
    assert not (tmp_path / "run").exists()


def test_more_minutes_train_more_epochs(images, tmp_path):
    short, out = tmp_path / "short", tmp_path / "run"
    for folder, minutes in ((short, "0.15"), (out, "0.5")):
        assert train(images, folder, *TINY, "--minutes", minutes, "--method", "idmm") == 0
    stages = read(out / "result.json")["stages"]
    assert all(stage["epochs"] >= 1 for stage in stages.values())
    assert read(short / "result.json")["stages"]["finetune"]["epochs"] < stages["finetune"]["epochs"]
    log = (out / "log.txt").read_text() + (out / "pretrain" / "log.txt").read_text()
    assert log.count("s left to train") == 2
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines].count("epoch") == stages["finetune"]["epochs"]


def test_first_stage_of_too_few_epochs_is_skipped(images, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(planning, "MIN_PRETRAIN_SHARE", 1e4)
    assert train(images, out, *WITHOUT_FIRST, "--minutes", "0.15") == 0
    assert "Skipping the first stage" in (out / "log.txt").read_text()
    assert not (out / "pretrain").exists()
    result = read(out / "result.json")
    assert (result["method"], "stages" in result) == ("supervised", False)
    saved = read(out / "config.json")
    assert (saved["method"], saved["pretrain_epochs"]) == ("supervised", None)
    assert saved["views"]["policy"] == ""  # as with --method supervised
    (out / "result.json").unlink()  # as if it had been stopped before its end
    assert run(["train", "--out", str(out), "--resume"]) == 0
    assert read(out / "result.json")["last"] == result["last"]
    for flags in (["--method", "idmm"], ["--pretrain-epochs", "2"], ["--preset", "released"]):
        assert train(images, tmp_path / flags[1], *WITHOUT_FIRST, "--minutes", "0.01", *flags) == 0
        assert "pretrain" in read(tmp_path / flags[1] / "result.json")["stages"]


def test_first_stage_stopped_before_its_pace_was_measured_is_skipped_on_resume(images, tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(planning, "MIN_PRETRAIN_SHARE", 1e4)
    with monkeypatch.context() as patch:
        patch.setattr("vitling.runs.pretrain.fit_to_time", _interrupted)
        assert train(images, out, *WITHOUT_FIRST, "--minutes", "0.05") == 143
    assert train(images, out, *WITHOUT_FIRST, "--minutes", "0.05", "--resume") == 0
    assert read(out / "result.json")["method"] == "supervised"


def test_warns_of_too_short_a_time(images, tmp_path, capsys):
    flags = ["--minutes", "0.001", "--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16"]
    quiet = ["--loop.device", "cpu", "--loop.trackers", "none"]
    assert run(["pretrain", str(images), "--out", str(tmp_path / "run"), *flags, *quiet]) == 0
    reasons = r"too short: \d+ s passed before training, about \d+ s are kept for the end, and one epoch takes \d+ s"
    assert re.search(reasons, capsys.readouterr().err)
    assert read(tmp_path / "run" / "result.json")["epochs"] == 1
    assert "above 0" in refused(capsys, "pretrain", images, "--out", tmp_path / "x", "--minutes", "0")


def test_first_stage_has_its_explicit_settings(images, tmp_path):
    flags = ["--idmm.smoothing", "0.2", "--pretrain-optim.lr", "3e-3", "--preset", "released", "--seed", "5"]
    seen: list[PretrainConfig] = []

    def remember(run, *given, **named):
        seen.append(run.draft.config)
        return pretrain_in(run, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "pretrain_in", remember)
        assert train(images, tmp_path / "run", *SHORT, *flags) == 0
    (config,) = seen
    assert (config.idmm.smoothing, config.optim.lr, config.preset, config.seed) == (0.2, 3e-3, "released", 5)
    assert (config.size, config.epochs, config.val) == (8, 2, "none")


def test_stage_at_a_larger_size(images, tmp_path, monkeypatch, capsys):
    """Interrupting it costs nothing of the stages before; the head is kept."""
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
def test_changed_views_replace_those_of_the_recipe(images, tmp_path, flags):
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
def test_refused_overwrite_deletes_nothing(images, tmp_path, capsys, what):
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitling.runs.labelled.fit", _interrupted)
        assert train(images, out, *SHORT) == 143
    kept = (out / "pretrain" / "model" / "model.safetensors").read_bytes()
    message = refused(capsys, "train", images, "--out", out, *SHORT, "--overwrite", *WRONG[what])
    assert "--" in message or "nosuch.pt" in message
    assert (out / "pretrain" / "model" / "model.safetensors").read_bytes() == kept


def test_from_is_the_start_of_the_first_stage(images, tmp_path):
    assert train(images, tmp_path / "one", *SHORT) == 0
    flags = [*SHORT, "--method", "idmm", "--from", str(tmp_path / "one"), "--pretrain-size", "16"]
    assert train(images, tmp_path / "two", *flags) == 0
    assert read(tmp_path / "two" / "config.json")["from_"] == str(tmp_path / "one")
    assert f"Started from {tmp_path / 'one'}:" in (tmp_path / "two" / "pretrain" / "log.txt").read_text()
    assert f"Started from {tmp_path / 'two' / 'pretrain'}:" in (tmp_path / "two" / "log.txt").read_text()
    assert train(images, tmp_path / "two", *flags, "--resume") == 0


def test_foreign_pretrain_folder_is_not_overwritten(images, tmp_path, capsys):
    flags = ["--size", "8", "--backbone", "vit_nano_patch4_32", "--batch", "16", "--epochs", "1"]
    quiet = ["--loop.device", "cpu", "--loop.trackers", "none"]
    assert run(["pretrain", str(images), "--out", str(tmp_path / "exp" / "pretrain"), *flags, *quiet]) == 0
    assert "is not a vitling run" in refused(capsys, "train", images, "--out", tmp_path / "exp", "--overwrite", *SHORT)
    assert (tmp_path / "exp" / "pretrain" / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_resumed_run_keeps_its_plan_and_a_new_one_gets_one(images, tmp_path, monkeypatch, resume):
    """A new run may have --resume too, as with --seeds if some of them have begun."""
    out, seen = tmp_path / "run", []

    def stop(stage, run, clock):
        seen.append((stage.resolved.config.test_size, stage.resolved.config.optim.lr))
        raise Interrupted("stopped", 143)

    monkeypatch.setattr(recipe, "train_stage", stop)
    monkeypatch.setattr(recipe, "gather_facts", lambda *given: Facts(images=30, classes=3, side=300))
    flags = ["--method", "supervised", "--loop.device", "cpu", "--loop.trackers", "none"]
    assert train(images, out, *flags, *resume) == 143
    assert seen[-1][0] == 288
    config = read(out / "config.json")
    config |= {"test_size": None, "optim": config["optim"] | {"lr": None}}  # unlike a new plan
    (out / "config.json").write_text(json.dumps(config))
    assert run(["train", "--out", str(out), "--resume"]) == 143
    assert seen[-1] == (None, None)


def test_schedule_covers_the_epochs_that_fit(images, tmp_path, monkeypatch):
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


def test_flip_and_colour_settings_apply_to_both_stages(images, tmp_path):
    flags = ["--views.flip", "0", "--data.channels", "4", "--pretrain-views.rotate", "10"]
    assert train(images, tmp_path / "run", *SHORT, *flags) == 0
    views = read(tmp_path / "run" / "pretrain" / "config.json")["views"]
    assert (views["flip"], views["colour"], views["rotate"]) == (0, False, 10)
    assert read(tmp_path / "run" / "config.json")["views"]["flip"] == 0
