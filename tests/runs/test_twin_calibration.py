"""Calibration of runs without held-out images."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitling
from tests.conftest import make_folder
from tests.data.pictures import put_bursts
from tests.made_runs import read, refused, train
from vitling.errors import InvalidFile, RunAborted
from vitling.runs import calibration
from vitling.runs.calibration import FILE, FOLDER, load_calibration, scale_length
from vitling.settings.config import FinetuneConfig
from vitling.training.config import OptimConfig
from vitling.training.trainer import Trainer


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(data, run): 60 images with a test split, trained for four epochs as `train` plans it."""
    root = tmp_path_factory.mktemp("finished")
    source = make_folder(root / "images", each=20, split="train")
    make_folder(source, each=5, split="test", first=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(source, root / "run", "--epochs", "4") == 0
    return source, root / "run"


def test_a_twin_calibrates_and_the_model_stays_the_same(finished, tmp_path):
    source, out = finished
    config, result = read(out / "config.json"), read(out / "result.json")
    assert (config["val"], config["calibrate"]) == ("none", "on")
    assert len(load_file(out / FILE)["labels"]) == 12
    assert not (out / FOLDER).exists()
    assert result["last"]["temperature"] != 1
    assert "a twin left out" in (out / "log.txt").read_text()
    assert train(source, tmp_path / "plain", "--epochs", "4", "--calibrate", "off") == 0
    theirs, ours = (load_file(path / "model" / "model.safetensors") for path in (tmp_path / "plain", out))
    assert all(theirs[name].equal(ours[name]) for name in theirs)
    plain = read(tmp_path / "plain" / "result.json")["last"]
    assert plain["temperature"] == 1
    assert plain["test"]["top1"] == result["last"]["test"]["top1"]
    assert "not calibrated" in (tmp_path / "plain" / "log.txt").read_text()


def test_the_twins_memory_is_free_when_the_run_starts(finished, tmp_path, monkeypatch):
    """Compiled objectives are in reference cycles, which Python's collector may leave alone for a long time."""
    begin, trainers, alive = Trainer.__init__, [], []

    def follow(self, *others):
        alive.append(sum(trainer() is not None for trainer in trainers))
        begin(self, *others)
        self.cycle = self
        trainers.append(weakref.ref(self))

    monkeypatch.setattr(Trainer, "__init__", follow)
    gc.disable()
    try:
        assert train(finished[0], tmp_path / "run", "--epochs", "1", "--no-report") == 0
    finally:
        gc.enable()
    assert alive == [0, 0]


def test_predictions_of_the_run(finished, capsys):
    source, out = finished
    model = vitling.load(out)
    answers = model.predict(sorted((source / "test" / "class-0").iterdir()), coverage=0.9)
    assert all(answer.unfamiliar is not None and answer.prediction_set for answer in answers)
    sets = model.evaluate(source, coverage=0.9)["prediction_sets"]
    assert sets["coverage"] == 0.9
    assert 1 <= sets["mean_size"] <= 3
    message = refused(capsys, "predict", out, source / "test", "--coverage", "0.95")
    assert "needs the scores of 19 held-out images, and the model has 12" in message


def test_a_resumed_run_keeps_its_calibration(finished, tmp_path):
    source, out = finished
    again = tmp_path / "again"
    shutil.copytree(out, again)
    for name in ("result.json", "model", "evaluation.json"):
        path = again / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert train(source, again, "--epochs", "4", "--resume") == 0
    for name in ("model/trust.safetensors", "model/model.safetensors"):
        assert (again / name).read_bytes() == (out / name).read_bytes()
    temperature = json.loads((again / "result.json").read_text())["last"]["temperature"]
    assert temperature == read(out / "result.json")["last"]["temperature"]


def test_the_twin_leaves_out_look_alikes_together(tmp_path, monkeypatch):
    source = put_bursts(tmp_path / "images")
    found = []

    def stop(config, store, held, *others):
        names = [key.removesuffix(".png").removesuffix("-again") for key in store.dataset.keys]
        found.append([{name for name, is_held in zip(names, held) if is_held == side} for side in (False, True)])
        raise RunAborted("Seen enough.")

    monkeypatch.setattr(calibration, "_train_twin", stop)
    assert train(source, tmp_path / "run", "--val", "none", "--calibrate", "on") == 3
    ((known, held),) = found
    assert held
    assert not known & held


@pytest.mark.parametrize(
    "changes",
    [
        {"logits": torch.zeros(4, 3, dtype=torch.int64)},
        {"logits": torch.zeros(4, 3, dtype=torch.float16)},
        {"labels": torch.zeros(4)},
        {"labels": torch.tensor([0, 1, 2, 3])},
        {"labels": torch.tensor([0, 1, 2, -1])},
        {"labels": torch.zeros(4, 3)},
        {"distances": torch.zeros(4, 2, dtype=torch.complex64)},
        {"distances": torch.zeros(4)},
    ],
)
def test_a_calibration_of_other_types_is_refused(changes, tmp_path):
    intact = {"logits": torch.zeros(4, 3), "labels": torch.zeros(4, dtype=torch.int64), "distances": torch.zeros(4, 2)}
    save_file(intact, tmp_path / FILE)
    assert load_calibration(tmp_path / FILE).labels.tolist() == [0, 0, 0, 0]
    save_file(intact | changes, tmp_path / FILE)
    with pytest.raises(InvalidFile, match=FILE):
        load_calibration(tmp_path / FILE)


def test_a_damaged_calibration_is_named(finished, tmp_path, capsys):
    source, out = finished
    again = tmp_path / "again"
    shutil.copytree(out, again)
    (again / "result.json").unlink()
    (again / FOLDER / "epochs-1").mkdir(parents=True)  # of a start that was killed before it deleted the twin
    assert train(source, again, "--epochs", "4", "--resume") == 0
    assert not (again / FOLDER).exists()
    (again / "result.json").unlink()
    save_file({"logits": torch.zeros(12, 3), "labels": torch.zeros(11)}, again / FILE)
    message = refused(capsys, "train", "--out", again, "--resume")
    assert f"{FILE}: expected logits" in message.replace("\n", " ")


def test_several_labels_have_a_temperature_and_no_sets(tmp_path, capsys):
    source = make_folder(tmp_path / "images", each=10)
    images = sorted(source.rglob("*.png"))
    rows = [f"{p.relative_to(source)},{p.parent.name}|{'odd' * (i % 2) or 'even'}" for i, p in enumerate(images)]
    (source / "labels.csv").write_text("\n".join(["path,label", *rows]))
    out = tmp_path / "run"
    assert train(source / "labels.csv", out, "--val", "none", "--calibrate", "on", "--epochs", "2") == 0
    assert load_file(out / FILE)["labels"].ndim == 2
    answers = vitling.load(out).predict(source / "class-0" / "image-00.png")
    assert answers[0].unfamiliar is not None
    assert "one class per image" in refused(capsys, "predict", out, source / "class-0", "--coverage", "0.9")


def test_a_larger_size_takes_over_the_calibration(finished, tmp_path):
    """A twin that starts from the finished model has seen the images that it would leave out."""
    source, _ = finished
    assert train(source, tmp_path / "run", "--epochs", "4", "--final-size", "16") == 0
    large = tmp_path / "run" / "large"
    assert not (large / FILE).exists()
    temperatures = [read(path / "result.json")["last"]["temperature"] for path in (tmp_path / "run", large)]
    assert temperatures[0] == temperatures[1] != 1
    model = vitling.load(large)
    (answer,) = model.predict(next((source / "test" / "class-0").iterdir()), coverage=0.9)
    assert answer.prediction_set
    assert answer.unfamiliar is None


def test_schedules_and_averages_follow_the_length():
    config = FinetuneConfig(epochs=200, optim=OptimConfig(warmup_epochs=20, schedule_epochs=300, ema=0.9999))
    short = scale_length(config, 0.25)
    assert (short.epochs, short.optim.warmup_epochs, short.optim.schedule_epochs) == (50, 5, 75)
    assert short.optim.ema == pytest.approx(0.9999**4)
    assert scale_length(replace(config, epochs=1), 0.25).epochs == 1
