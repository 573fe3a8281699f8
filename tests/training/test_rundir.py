"""Run directories: what is left of killed starts, directories in use, and paths that are no directories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.made_runs import TINY, read, refused, train
from vitling.cli import run
from vitling.files import LOCK
from vitling.runs import group
from vitling.training import rundir
from vitling.training.rundir import RunDirectory

PART = ".config.json.abcd1234.part"


@pytest.fixture
def killed(tmp_path) -> Path:
    """The directory of a run that was killed while it wrote its first config.json."""
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (out / PART).write_text('{"half')
    (out / LOCK).write_text("process 1 on somewhere")
    (out / "log.txt").write_text("2026-01-01 00:00:00 a li")
    return out


@pytest.mark.parametrize("flags", [(), ("--resume",), ("--overwrite",)], ids=str)
def test_a_start_killed_before_its_settings_were_saved_can_be_repeated(folder, killed, flags):
    assert train(folder, killed, *flags) == 0
    assert read(killed / "result.json")["finished"]
    assert not list(killed.rglob(".*"))


@pytest.mark.parametrize("flags", [(), ("--resume",), ("--overwrite",)], ids=str)
@pytest.mark.parametrize(
    "name",
    ["checkpoints/epoch1.ckpt", "checkpoints", "model/net.h5", "tensorboard/events", "best/a.bin", "result.json"],
)
def test_files_of_another_program_are_kept(folder, tmp_path, capsys, name, flags):
    """Although their names are those of a run: a run has a config.json."""
    out = tmp_path / "out"
    for path in (out / name, out / "log.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    assert "not a vitling run" in refused(capsys, "train", folder, "--out", out, *flags).replace("\n", " ")
    assert (out / name).read_text() == (out / "log.txt").read_text() == "precious"


@pytest.mark.parametrize("flags", [(), ("--overwrite",)], ids=str)
def test_a_log_of_another_program_is_continued(folder, tmp_path, flags, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "log.txt").write_text("precious\n")
    assert "epochs" in refused(capsys, "train", folder, "--out", out, "--epochs", "0", *flags)
    assert "--batch" in refused(capsys, "train", folder, "--out", out, "--optim.accumulate", "99", *flags)
    assert train(folder, out, *flags) == 0
    assert (out / "log.txt").read_text().startswith("precious\n")


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_log_that_is_no_regular_file_is_refused(folder, tmp_path, capsys, kind):
    out = tmp_path / "out"
    out.mkdir()
    (out / "log.txt").symlink_to(tmp_path / "elsewhere") if kind == "link" else (out / "log.txt").mkdir()
    assert "not a vitling run" in refused(capsys, "train", folder, "--out", out).replace("\n", " ")
    assert not (tmp_path / "elsewhere").exists()


def test_without_data_it_says_what_to_type(killed, capsys):
    message = refused(capsys, "train", "--out", killed, "--resume").replace("\n", " ")
    assert "no settings are saved there" in message
    assert f"vitling train DATA --out {killed} --resume" in message


def test_leftovers_of_any_file_are_removed(folder, tmp_path):
    out = tmp_path / "run"
    assert train(folder, out) == 0
    (out / "result.json").unlink()
    for place in (".", "checkpoints", "model"):
        (out / place / ".some.file.abcd1234.part").write_text("x")
    assert train(folder, out, "--resume") == 0
    assert not list(out.rglob(".*"))


HOLD = """
import sys
from vitling.training.rundir import RunDirectory
RunDirectory(sys.argv[1]).prepare(resume=True, overwrite=False)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_run_in_use_is_refused_with_its_process(folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(folder, out) == 0
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    for flag in ("--resume", "--overwrite"):
        message = refused(capsys, "train", folder, "--out", out, "--method", "supervised", flag)
        assert f"in use by process {holder.pid} on" in message
    assert {path: path.stat().st_mtime_ns for path in files} == files
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert run(["train", str(folder), "--out", str(out), "--resume"]) == 0


@pytest.mark.parametrize("flag", ["--overwrite", "--resume"])
def test_out_is_never_replaced(folder, tmp_path, capsys, flag):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "file", tmp_path / "dangling", Path(os.devnull)):
        message = refused(capsys, "train", folder, "--out", path, "--method", "supervised", flag)
        assert "is a file" in message or "cannot be written" in message
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "dangling").is_symlink()
    assert not Path(os.devnull).is_file()


def test_metrics_are_rewritten_atomically(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        directory.log_metrics({"step": step})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "lo')  # cut short by a kill
    before = path.read_text()

    def fail(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            directory.drop_metrics_after(2)
    assert path.read_text() == before
    assert directory.drop_metrics_after(2)
    directory.log_metrics({"step": 3})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert not directory.drop_metrics_after(3)


def test_a_run_that_ends_just_before_the_claim_is_not_deleted(folder, tmp_path, capsys, monkeypatch):
    """Two processes start at once, and one is done before the other has claimed the directory."""
    out, claim = tmp_path / "run", rundir.claim_folder

    def claim_late(path: Path) -> Any:
        monkeypatch.undo()
        assert train(folder, out) == 0
        return claim(path)

    monkeypatch.setattr(rundir, "claim_folder", claim_late)
    assert "is a finished run" in refused(capsys, "train", folder, "--out", out, *TINY)
    assert (out / "result.json").exists()
    assert not list(out.rglob(".*"))


def test_a_folder_of_several_runs_that_end_just_before_the_claim_is_kept(folder, tmp_path, capsys, monkeypatch):
    out, claim, seeds = tmp_path / "seeds", group.claim_folder, ("--seeds", "2", "--val", "none")

    def claim_late(path: Path) -> Any:
        monkeypatch.undo()
        assert train(folder, out, *seeds) == 0
        return claim(path)

    monkeypatch.setattr(group, "claim_folder", claim_late)
    assert "is not empty" in refused(capsys, "train", folder, "--out", out, *TINY, *seeds)
    assert (out / "seed1" / "result.json").exists()
    assert not list(out.rglob(".*"))


def test_a_folder_of_several_runs_in_use_is_refused(folder, tmp_path, capsys):
    """Between two runs none of them is in use, but --overwrite would delete those that have finished."""
    out, seeds = tmp_path / "seeds", ("--seeds", "2", "--val", "none")
    assert train(folder, out, *seeds) == 0
    code = (
        "import sys; from vitling.files import claim_folder; claim_folder(sys.argv[1]); print(1, flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    before = (out / "request.json").read_text()
    assert f"in use by process {holder.pid} on" in refused(
        capsys, "train", folder, "--out", out, *TINY, *seeds, "--overwrite"
    )
    assert (out / "seed0" / "result.json").exists()
    assert (out / "request.json").read_text() == before
    holder.kill()
    holder.communicate()
    assert train(folder, out, *seeds, "--overwrite") == 0
    assert not list(out.rglob(".*"))


@pytest.mark.parametrize("name", ["log.txt", "model"])
def test_a_resumed_run_writes_through_no_link(folder, killed, tmp_path, capsys, name):
    (killed / "config.json").write_text('{"checkpoint": {}, "loop": {}}')
    (killed / "log.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    (killed / name).symlink_to(tmp_path / "elsewhere")
    message = refused(capsys, "train", folder, "--out", killed, "--resume").replace("\n", " ")
    assert f"{name} is a link" in message
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_name_that_is_not_utf_8_is_refused(folder, tmp_path, capsys):
    out = tmp_path / "run\udcff"
    assert "not UTF-8" in refused(capsys, "train", folder, "--out", out, "--method", "supervised", "--size", "8")
    assert not out.exists()
