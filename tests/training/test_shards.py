"""IDMM in two processes equals IDMM in one for every classifier: losses, gradients, checkpoints, a resume."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import make_folder
from tests.tiny import relative_distance
from tests.training.helpers import latest, lines, run_two_processes
from tests.training.sharded_run import CROPS, KINDS, classify, objective, train
from vitling import data
from vitling.data.store import build_store
from vitling.errors import UserError
from vitling.training import FitConfig, LoopConfig, Processes, RunDirectory, fit

pytestmark = pytest.mark.slow
ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The images, and the results of two processes."""
    folder = tmp_path_factory.mktemp("shards")
    make_folder(folder / "images", classes=3, each=11)
    run_two_processes("tests.training.sharded_run", folder / "images", folder / "two")
    return folder


def test_a_sharded_classifier_equals_the_full_one(two):
    """Gradients of the classifier are already means over processes; DDP still has to average those of the features."""
    whole = classify(slice(0, CROPS), 1.0)
    parts = [torch.load(two / "two" / f"{rank}.pt") for rank in (0, 1)]
    assert [len(part["weight"]) for part in parts] == [5, 6]
    torch.testing.assert_close(sum(part["loss"] for part in parts) / 2, whole["loss"])
    torch.testing.assert_close(torch.cat([part["z"] for part in parts]) / 2, whole["z"])
    for name in ("initial", "weight", "bias"):
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), whole[name])


@pytest.mark.parametrize("kind", KINDS)
def test_two_resumed_processes_equal_one_uninterrupted(two, tmp_path, kind):
    store = build_store(data.open(str(two / "images"), val="none").train, 16)
    train(kind, store, tmp_path / "run", ALONE)
    one, other = (latest(folder) for folder in (tmp_path / "run", two / "two" / kind))
    start = objective(kind, 33).state_dict()
    assert relative_distance(one["objective"], other["objective"], start) < 1e-3
    assert relative_distance(one["average"]["shadow"], other["average"]["shadow"], start) < 1e-3
    assert one["best"]["epoch"] == other["best"]["epoch"] == 1
    assert relative_distance(one["best"]["weights"], other["best"]["weights"], start) < 1e-3
    assert one["optimiser"]["state"].keys() == other["optimiser"]["state"].keys()
    for index, moments in one["optimiser"]["state"].items():
        for name, value in moments.items():
            found = other["optimiser"]["state"][index][name]
            assert (found - value).norm() <= 1e-3 * value.norm() + 1e-6, (index, name)
    for a, b in zip(lines(tmp_path / "run"), lines(two / "two" / kind), strict=True):
        assert (a["epoch"], a["step"]) == (b["epoch"], b["step"])
        assert abs(a["loss"] - b["loss"]) < 1e-4
        assert abs(a["grad_norm"] - b["grad_norm"]) < 1e-3 * a["grad_norm"]


def test_a_sharded_checkpoint_resumes_in_one_process(two, tmp_path):
    """The checkpoint holds whole tensors, like that of one process."""
    store = build_store(data.open(str(two / "images"), val="none").train, 16)
    made = objective("full", 33)
    loop = LoopConfig(device="cpu", trackers=())
    run = RunDirectory(two / "two" / "sharded")
    outcome = fit(made, store, FitConfig(4, 8, loop=loop), run=run, processes=ALONE)
    assert outcome.steps == 20
    assert torch.equal(made.state_dict()["classifier.weight"], latest(run.path)["objective"]["classifier.weight"])
    assert len(made.classifier.weight) == 33


def test_fp16_is_refused(two, tmp_path, monkeypatch):
    store = build_store(data.open(str(two / "images"), val="none").train, 16)
    made = objective("full", 33)
    monkeypatch.setattr(made, "sharded_parameters", lambda: {"classifier.weight": 33})
    monkeypatch.setattr("vitling.training.precision.choose_precision", lambda *_: half())
    with pytest.raises(UserError, match=r"Use --loop\.precision bf16"):
        fit(made, store, FitConfig(), run=RunDirectory(tmp_path), processes=ALONE)


def half():
    from vitling.training.precision import Precision

    return Precision("fp16", torch.device("cpu"))
