"""The process that precompiles the second stage while the first one trains."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import make_folder
from tests.made_runs import read
from vitling.cli import run
from vitling.data import cache
from vitling.data.dataset import Splits
from vitling.errors import Interrupted
from vitling.objectives.moments import Moment
from vitling.runs import precompile
from vitling.runs.opening import OpenRun
from vitling.runs.precompile import Precompiler
from vitling.settings.config import TrainConfig
from vitling.settings.layers import Draft
from vitling.settings.resolve import Resolved
from vitling.training import compilation, helpers
from vitling.training.config import LoopConfig
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.training.trainer import Trainer

SMALL = [
    *("--method", "idmm", "--backbone", "vit_micro_patch4_32", "--size", "8", "--pretrain-size", "16", "--batch", "16"),
    *("--pretrain-epochs", "3", "--epochs", "1", "--val", "none", "--loop.device", "cpu", "--loop.trackers", "none"),
    "--no-report",
]
ALONE = Processes(0, 1, torch.device("cpu"))


def make_precompiler(path: Path, processes: Processes = ALONE) -> Precompiler:
    return Precompiler(OpenRun(Draft(TrainConfig()), RunDirectory(path), processes), TrainConfig())


@pytest.fixture
def images(tmp_path):
    """Write images so large that the stages decode them at different sizes."""
    make_folder(tmp_path / "images", each=8, split="train", width=64, height=64)
    return make_folder(tmp_path / "images", each=3, split="test", first=50, width=64, height=64)


@pytest.fixture
def wanted(monkeypatch, tmp_path):
    """Precompile as on a GPU, with a private cache."""
    monkeypatch.setattr(precompile, "_is_worthwhile", lambda config, device: True)
    monkeypatch.setattr(precompile, "_FIRST_STEP", 1)
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "cache"))


def executable(path, text, monkeypatch):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_second_stage_finds_its_images_decoded_and_trains_the_same(images, wanted, tmp_path, monkeypatch):
    built, build = [], cache._build
    monkeypatch.setattr(cache, "_build", lambda entry, shape, *rest: built.append(shape) or build(entry, shape, *rest))
    assert run(["train", str(images), "--out", str(tmp_path / "run"), *SMALL]) == 0
    assert len(built) == 1  # the first stage's; the second's and the test split's were built elsewhere
    assert len(list((tmp_path / "cache" / "pixels").iterdir())) == 3
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "in another process" in log
    assert "not precompiled" not in log
    monkeypatch.setattr(precompile, "_is_worthwhile", lambda config, device: False)
    assert run(["train", str(images), "--out", str(tmp_path / "without"), *SMALL]) == 0
    without, beside = (read(tmp_path / name / "result.json")["last"] for name in ("without", "run"))
    assert without == beside


@pytest.mark.parametrize("text", ["echo no compiler; exit 3", r"printf 'no compiler \377'; exit 3"])
def test_failure_is_logged_and_harmless(images, wanted, tmp_path, monkeypatch, text):
    executable(tmp_path / "fails", text, monkeypatch)
    assert run(["train", str(images), "--out", str(tmp_path / "run"), *SMALL]) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "not precompiled, which only costs time (exit code 3" in log
    assert "no compiler" in log


def test_process_that_cannot_be_started_is_not_needed(images, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert run(["train", str(images), "--out", str(tmp_path / "run"), *SMALL]) == 0
    assert "is not precompiled" in (tmp_path / "run" / "log.txt").read_text()


def test_the_test_split_stays_closed(images, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(Splits, "open_test", lambda splits, why: pytest.fail("it was opened"))
    config = TrainConfig(
        source=str(images), out=str(tmp_path / "run"), method="idmm", backbone="vit_micro_patch4_32", size=8
    )
    config = replace(config, batch=16, epochs=1, val="none", loop=LoopConfig(device="cpu", trackers=()))
    precompile.prepare(Resolved(config, {}), 0)
    assert len(list((tmp_path / "cache" / "pixels").iterdir())) == 2
    assert not (tmp_path / "run").exists()


def test_preparation_fails_if_the_stage_runs_differently(images, wanted, tmp_path, monkeypatch):
    """The compiled code is useless if the run needs more passes or cannot compile."""
    config = TrainConfig(source=str(images), out="", backbone="vit_micro_patch4_32", size=8, batch=16, epochs=1)
    config = replace(config, val="none", loop=LoopConfig(device="cpu", trackers=()))
    take_step, calls = Trainer._take_step, []

    def too_large(trainer, key, micro_batches):
        calls.append(len(micro_batches))
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return take_step(trainer, key, micro_batches)

    monkeypatch.setattr(Trainer, "_take_step", too_large)
    with pytest.raises(RuntimeError, match="memory"):
        precompile.prepare(Resolved(config, {}), 0)
    monkeypatch.setattr(Trainer, "_take_step", take_step)
    monkeypatch.setattr(compilation, "compile_in_place", lambda *given, **named: None)
    monkeypatch.setattr(compilation, "compile_or_warn", lambda step, undo, warn: (undo(), step())[1])
    compiled = LoopConfig(device="cpu", trackers=(), compile="on")
    with pytest.raises(RuntimeError, match="compile"):
        precompile.prepare(Resolved(replace(config, loop=compiled), {}), 0)


def test_process_ends_when_the_first_stage_is_stopped(wanted, tmp_path, monkeypatch):
    executable(tmp_path / "sleeps", f"sleep 100 & echo $! > {tmp_path / 'pid'}; wait", monkeypatch)
    (tmp_path / "run").mkdir()
    precompiler = make_precompiler(tmp_path / "run")

    def stopped():
        with precompiler:
            precompiler.start()
            wait_for_pid(tmp_path / "pid")
            raise Interrupted("Stopped.", 130)

    with pytest.raises(Interrupted):
        stopped()
    assert precompiler.helper.process.returncode is not None
    assert has_ended(wait_for_pid(tmp_path / "pid"))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_process_ends_when_its_parent_is_killed(tmp_path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()));"
    child += "from vitling.training.helpers import exit_with_parent; exit_with_parent(); time.sleep(100)"
    parent = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
    parent += "stdin=subprocess.PIPE, start_new_session=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", parent, child])
    pid = wait_for_pid(tmp_path / "pid")
    process.kill()
    process.wait()
    assert has_ended(pid)


def wait_for_pid(path: Path) -> int:
    """Wait for a file with a process id and return the id."""
    for _ in range(600):
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.05)
    return pytest.fail(f"{path} was never written")


def has_ended(pid: int) -> bool:
    """Return whether the process ends within a minute; init reaps it if its parent is gone."""
    for _ in range(1200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("left", "patience"), [(None, 0.1), (0.4, 900), (-3.0, 900)])
def test_process_that_does_not_end_is_stopped(wanted, tmp_path, monkeypatch, left, patience):
    monkeypatch.setattr(precompile, "_MAX_WAIT_SECONDS", patience)
    executable(tmp_path / "sleeps", "exec sleep 100", monkeypatch)
    (tmp_path / "run").mkdir()
    with make_precompiler(tmp_path / "run") as precompiler:
        precompiler.start()
        precompiler.finish(left)
    assert precompiler.helper.process.returncode is not None
    assert "it took too long" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("device", "compile", "cores", "gigabytes", "worth"),
    [
        ("cuda", "auto", 16, 64, True),
        ("cuda", "blocks", 16, 64, True),
        ("cuda", "off", 16, 64, False),
        ("cuda", "auto", 2, 64, False),
        ("cuda", "auto", 16, 4, False),
        ("cpu", "on", 16, 64, False),
    ],
)
def test_when_it_is_worthwhile(device, compile, cores, gigabytes, worth, monkeypatch):
    monkeypatch.setattr(helpers, "count_cores", lambda: cores)
    monkeypatch.setattr(helpers, "get_free_memory", lambda: gigabytes * 2**30)
    config = TrainConfig(loop=LoopConfig(compile=compile))
    assert precompile._is_worthwhile(config, torch.device(device)) is worth
    assert not precompile._is_worthwhile(replace(config, cache=False), torch.device(device))


def test_several_processes_do_not_precompile(wanted, tmp_path):
    several = Processes(0, 2, torch.device("cpu"))
    assert not make_precompiler(tmp_path / "run", several).wanted


@pytest.mark.parametrize(
    ("step", "epoch", "phases", "phase", "starts"),
    [(20, 1, 1, 0, True), (5, 1, 1, 0, False), (20, 3, 1, 0, False), (20, 1, 2, 0, False), (20, 1, 2, 1, True)],
)
def test_when_it_starts(step, epoch, phases, phase, starts):
    """It starts once all graphs are captured, in the phase with the most memory, not after the last epoch."""
    started = []
    objective = SimpleNamespace(phases=phases, phase=phase)
    watcher = Precompiler.make_watcher(SimpleNamespace(start=lambda: started.append(1)), every=1)
    assert watcher(Moment(objective, epoch, 3, step, {})) == {}
    assert bool(started) is starts


def test_memory_of_the_first_stage_is_not_spare(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 30 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * 2**30)
    assert precompile._spare_memory(torch.device("cuda")) == 24 * 2**30


def test_no_process_without_spare_memory(wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(precompile, "_spare_memory", lambda device: 2**30)
    with make_precompiler(tmp_path / "run") as precompiler:
        precompiler.start()
    assert precompiler.helper is None
