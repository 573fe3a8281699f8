"""The process that prepares the second stage while the first one trains."""

from __future__ import annotations

import os
import time

import pytest
import torch

from tests.conftest import make_folder
from tests.runs import read
from vitling.cli import run
from vitling.data import cache
from vitling.errors import Interrupted
from vitling.recipes import meanwhile
from vitling.recipes.config import TrainConfig
from vitling.recipes.meanwhile import Meanwhile
from vitling.training.config import LoopConfig
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory

SMALL = [
    *("--method", "idmm", "--backbone", "vit_micro_patch4_32", "--size", "8", "--pretrain-size", "16", "--batch", "16"),
    *("--pretrain-epochs", "3", "--epochs", "1", "--val", "none", "--loop.device", "cpu", "--loop.trackers", "none"),
]
ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture
def images(tmp_path):
    """Large enough for the stages to have stores of their own sizes."""
    make_folder(tmp_path / "images", each=8, split="train", width=64, height=64)
    return make_folder(tmp_path / "images", each=3, split="test", first=50, width=64, height=64)


@pytest.fixture
def wanted(monkeypatch, tmp_path):
    """As on a GPU, with a cache of its own."""
    monkeypatch.setattr(meanwhile, "_is_worth_it", lambda config, device: True)
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "cache"))


def executable(path, text, monkeypatch):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(meanwhile.sys, "executable", str(path))


def test_the_second_stage_finds_its_images_decoded_and_the_test_split_unopened(images, wanted, tmp_path, monkeypatch):
    built, build = [], cache._build
    monkeypatch.setattr(cache, "_build", lambda entry, shape, *rest: built.append(shape) or build(entry, shape, *rest))
    assert run(["train", str(images), "--out", str(tmp_path / "run"), *SMALL]) == 0
    assert len(built) == 1  # the first stage's; the second's and the test split's were built elsewhere
    assert len(list((tmp_path / "cache" / "pixels").iterdir())) == 3
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "another process decodes" in log
    assert "not prepared" not in log
    assert log.count("test split opened") == 1
    assert not (tmp_path / "run" / "pretrain" / "test-openings.jsonl").exists()


def test_a_helper_that_fails_changes_nothing(images, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(meanwhile, "_is_worth_it", lambda config, device: False)
    assert run(["train", str(images), "--out", str(tmp_path / "without"), *SMALL]) == 0
    monkeypatch.setattr(meanwhile, "_is_worth_it", lambda config, device: True)
    executable(tmp_path / "fails", "echo no compiler; exit 3", monkeypatch)
    assert run(["train", str(images), "--out", str(tmp_path / "with"), *SMALL]) == 0
    log = (tmp_path / "with" / "log.txt").read_text()
    assert "not prepared" in log
    assert "no compiler" in log
    without, beside = (read(tmp_path / name / "result.json")["last"] for name in ("without", "with"))
    assert without == beside


def test_nothing_is_left_of_a_helper_when_the_first_stage_is_stopped(wanted, tmp_path, monkeypatch):
    executable(tmp_path / "sleeps", f"sleep 100 & echo $! > {tmp_path / 'pid'}; wait", monkeypatch)
    (tmp_path / "run").mkdir()
    helped = Meanwhile(RunDirectory(tmp_path / "run"), TrainConfig(), ALONE)

    def stopped():
        with helped:
            helped.start()
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
                time.sleep(0.05)
            raise Interrupted("Stopped.", 130)

    with pytest.raises(Interrupted):
        stopped()
    assert helped.helper.returncode is not None
    for _ in range(100):  # killed; whose parent is gone, init reaps
        if not is_running(int((tmp_path / "pid").read_text())):
            break
        time.sleep(0.05)
    else:
        pytest.fail("the helper's own process lives on")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return open(f"/proc/{pid}/stat").read().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_a_helper_that_does_not_end_is_not_waited_for(wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(meanwhile, "PATIENCE", 0.1)
    executable(tmp_path / "sleeps", "exec sleep 100", monkeypatch)
    (tmp_path / "run").mkdir()
    with Meanwhile(RunDirectory(tmp_path / "run"), TrainConfig(), ALONE) as helped:
        helped.start()
        helped.finish()
    assert helped.helper.returncode is not None
    assert "not prepared" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("device", "compile", "cores", "worth"),
    [
        ("cuda", "auto", 16, True),
        ("cuda", "blocks", 16, True),
        ("cuda", "off", 16, False),
        ("cuda", "auto", 2, False),
        ("cpu", "on", 16, False),
    ],
)
def test_when_it_is_worth_it(device, compile, cores, worth, monkeypatch):
    monkeypatch.setattr(meanwhile.os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert meanwhile._is_worth_it(TrainConfig(loop=LoopConfig(compile=compile)), torch.device(device)) is worth


def test_memory_that_the_first_stage_may_still_take_is_not_spared(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 30 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * 2**30)
    assert meanwhile._memory_to_spare(torch.device("cuda")) == 49 * 2**30


def test_without_memory_to_spare_there_is_no_helper(wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(meanwhile, "_memory_to_spare", lambda device: 2**30)
    with Meanwhile(RunDirectory(tmp_path / "run"), TrainConfig(), ALONE) as helped:
        helped.start()
    assert helped.helper is None
