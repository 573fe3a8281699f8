"""Runs of few minutes on a CPU: --minutes is used up, and little of it goes to anything but training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.conftest import make_folder
from tests.made_runs import read
from vitling.cli import run
from vitling.console import Log
from vitling.data.config import DataConfig
from vitling.data.splits import read_splits
from vitling.data.store import build_store
from vitling.evaluation import load
from vitling.evaluation.classify import compute_logits
from vitling.evaluation.familiarity import compute_features, compute_logits_and_features
from vitling.runs import timing
from vitling.settings.config import TrainConfig
from vitling.settings.dense import DetectConfig
from vitling.settings.facts import Fit
from vitling.settings.layers import Origin
from vitling.settings.names import replace_leaf
from vitling.settings.resolve import Resolved
from vitling.training.config import LoopConfig


@pytest.mark.parametrize("per_epoch", [1, 3, 10, 32])
@pytest.mark.parametrize("steps", [0, 1, 2, 25, 39, 125, 1000])
def test_few_steps_are_wasted(steps, per_epoch):
    epochs, part = timing.divide_steps(steps, per_epoch)
    batches = round(part * per_epoch)
    assert 1 <= batches <= per_epoch
    assert 0.95 * steps <= epochs * batches <= max(1, steps)


def test_whole_epochs_are_kept_where_they_fit():
    assert timing.divide_steps(320, 32) == (10, 1.0)
    assert timing.divide_steps(1000, 10) == (100, 1.0)
    assert timing.divide_steps(125, 32) == (4, 31 / 32)


@pytest.mark.parametrize(
    ("val", "minutes", "evaluations"), [(600, 1.0, 1), (60, 10.0, 10), (600, 3.0, 1), (600, 5.0, 3)]
)
def test_evaluations_take_little_time(val, minutes, evaluations):
    stores = SimpleNamespace(train=_Sized(320, torch.device("cpu")), val=range(val))
    config = TrainConfig(minutes=minutes, batch=32, epochs=1800)
    found = timing._use_all_time(Fit(7, "off"), 7.5, config, stores, pace=100.0, ending=8.0)
    assert (found.epochs, found.epoch_part, found.evaluations) == (8, 0.9, evaluations)


def test_dense_runs_on_a_cpu_keep_time_for_the_last_evaluations_only():
    stores = SimpleNamespace(splits=SimpleNamespace(hidden_test=None), val=range(30), seconds_per_image=0.0)
    seconds = timing.ending_seconds(DetectConfig(minutes=2.0), stores, pace=10.0, gpu=False)
    assert seconds - timing._SAVING_SECONDS_CPU == pytest.approx(2 * 30 / (timing.EVALUATION_SPEED * 10))


def test_steps_of_epochs_that_had_a_part_of_the_images_are_divided_too():
    stores = SimpleNamespace(train=_Sized(320, torch.device("cpu")), val=None)
    config = TrainConfig(minutes=1.0, batch=32, epochs=1800, loop=LoopConfig(epoch_part=0.5))
    fit = timing._use_all_time(Fit(1, "off", 0.5), 1.5, config, stores, pace=100.0, ending=8.0)
    assert (fit.epochs, fit.epoch_part) == (7, 0.1)  # 7 of the 1.5 * 5 steps


class _Sized:
    """A store that exists in number only."""

    def __init__(self, images: int, device: torch.device):
        self.images, self.device = images, device

    def __len__(self) -> int:
        return self.images


def test_report_of_a_short_run_takes_a_second():
    assert timing.report_seconds(60) == 1
    assert timing.report_seconds(60, timed=False) == 4
    assert timing.report_seconds(180) == 4
    assert timing.report_seconds(3600) == 45


def test_end_on_a_cpu_counts_the_training_images_that_are_passed():
    config = TrainConfig(minutes=1.0, size=64)
    stores = SimpleNamespace(
        splits=SimpleNamespace(hidden_test=None), val=None, seconds_per_image=0.0, train=range(1000)
    )
    seconds = timing.ending_seconds(config, stores, pace=100.0, gpu=False) - timing._SAVING_SECONDS_CPU
    assert seconds == pytest.approx(0.02 * 60, abs=0.01)  # 360 of the 1,000 images


def test_short_run_ends_with_a_page_without_images(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "measure_pace", lambda *_: (40.0, "off"))
    make_folder(tmp_path / "images", each=12, split="train")
    images = make_folder(tmp_path / "images", each=4, split="val", first=50)
    flags = ["--minutes", "1", "--backbone", "vit_nano_patch4_32", "--size", "16", "--epochs", "1", "--method"]
    assert (
        run(["train", str(images), "--out", str(tmp_path / "run"), *flags, "supervised", "--loop.device", "cpu"]) == 0
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Sections with images are left out" in page
    result = read(tmp_path / "run" / "result.json")
    assert result["best"] == result["last"]
    model, store = load(tmp_path / "run", device="cpu"), build_store(read_splits(str(images), DataConfig()).val, 16)
    store.mean, store.std = model.meta.mean, model.meta.std
    logits, features = compute_logits_and_features(model.backbone, model.head, store, 16, 0.875)
    torch.testing.assert_close(logits, compute_logits(model.logits, store, 16, 0.875))
    torch.testing.assert_close(tuple(features), tuple(compute_features(model.backbone, store, 16, 0.875)))


def test_views_that_the_pace_changes_are_logged(tmp_path):
    planned = Resolved(TrainConfig(), {})
    fitted = Resolved(replace_leaf(TrainConfig(), "views.cutmix", 0.0), {"views.cutmix": Origin("pace", "few epochs")})
    log = Log(tmp_path / "log.txt")
    timing._log_changed_views(planned, fitted, log)
    assert "--views.cutmix 0  few epochs" in (tmp_path / "log.txt").read_text()
