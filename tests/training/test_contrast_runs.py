"""SimCLR, SupCon and LeJEPA in two processes equal one process: losses, gradients, SGD's momentum, a resume."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import make_folder
from tests.training.contrast_run import BATCHES, KINDS, gradients, objective, train
from tests.training.helpers import ALONE, QUIET, check_equal_runs, config, lines, open_store, run_two_processes
from vitling.training import OptimConfig, RunDirectory, fit


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return a folder with the images, and with the results of two processes."""
    folder = tmp_path_factory.mktemp("contrast")
    make_folder(folder / "images", classes=3, each=11)
    run_two_processes("tests.training.contrast_run", folder / "images", folder / "two")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("images", BATCHES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_two_gradients_is_that_of_one(two, kind, images):
    """DDP computes this mean. Of five images one process has three; a single image is in one process only."""
    parts = [torch.load(two / "two" / kind / f"{rank}.pt")[images] for rank in (0, 1)]
    for name, whole in gradients(kind, images).items():
        torch.testing.assert_close(sum(part[name] for part in parts) / 2, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_resumed_processes_equal_one_uninterrupted(two, tmp_path, kind):
    store = open_store(two / "images")
    train(kind, store, tmp_path / "run", ALONE)
    check_equal_runs(tmp_path / "run", two / "two" / kind, objective(kind, store.labels).state_dict())


def test_passes_that_compare_fewer_images_are_warned_about(folder, tmp_path):
    store = open_store(folder)
    for name, accumulate in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        settings = config(epochs=1, optim=OptimConfig(accumulate=accumulate), loop=QUIET)
        fit(objective("simclr", store.labels), store, settings, run=RunDirectory(tmp_path / name))
    assert "compared only within each micro-batch" not in (tmp_path / "one" / "log.txt").read_text()
    assert "compared only within each micro-batch" in (tmp_path / "two" / "log.txt").read_text()


def test_the_loss_falls(folder, tmp_path):
    store = open_store(folder)
    for kind in ("simclr", "supcon"):
        (tmp_path / kind).mkdir()
        model = objective(kind, store.labels)
        settings = config(epochs=30, batch=30, optim=OptimConfig(lr=2e-3), loop=QUIET)
        fit(model, store, settings, run=RunDirectory(tmp_path / kind))
        written = lines(tmp_path / kind)
        assert written[-1]["loss"] < written[0]["loss"] - 0.3, kind
