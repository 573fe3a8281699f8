"""Signals, kills, full disks and several processes, through the real command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import make_folder
from tests.tiny import relative_distance
from tests.training.helpers import free_port
from vitling.errors import UserError
from vitling.training.processes import init_processes

pytestmark = pytest.mark.slow
COMMON = [
    *("--method", "supervised", "--val", "none", "--size", "8", "--batch", "8"),
    *("--loop.trackers", "none", "--loop.device", "cpu"),
]
EXACT = [*COMMON, "--checkpoint.every-seconds", "0", "--optim.ema", "0.9"]


def command(source: Path, out: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "vitling", "train", str(source), "--out", str(out), *flags]


def train(source: Path, out: Path, *flags: str) -> None:
    subprocess.run(command(source, out, *flags), check=True, capture_output=True)


def torchrun(source: Path, out: Path, *flags: str) -> list[str]:
    """Return the command that trains in two processes."""
    head = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    return [*head, "--master-port", str(free_port()), *command(source, out, *flags)[1:]]


def train_in_two(source: Path, out: Path, *flags: str) -> None:
    subprocess.run(torchrun(source, out, *flags), check=True, capture_output=True, timeout=300)


def result(out: Path) -> dict:
    return load_file(out / "model" / "model.safetensors")


def losses(out: Path) -> list[tuple]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["step"], line["loss"]) for line in lines if line["kind"] == "epoch"]


def wait_for(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def kill_often(words: list[str], out: Path, seconds: float, kills: int) -> None:
    """Send SIGKILL while importing, decoding, training or writing a checkpoint; then let the run finish."""
    chance = random.Random(7)
    for kill in range(kills):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = checkpoint_names(out)
        if kill > 0:  # the first kill may come before any file exists
            wait_for(lambda p=process, b=before: checkpoint_names(out) != b or p.poll() is not None)
        time.sleep(chance.uniform(0, seconds / (2 * kills)))
        assert process.poll() is None, "the run ended before its kill"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "result.json").exists()
    subprocess.run(words, check=True, capture_output=True)


def seconds_of(out: Path) -> float:
    return json.loads((out / "result.json").read_text())["seconds"]


def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    """The final weights are bit-identical."""
    source = make_folder(tmp_path / "images", classes=3, each=20)
    flags = [*EXACT, "--epochs", "60"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    train(source, whole, *flags)
    kill_often(command(source, out, *flags, "--resume"), out, seconds_of(whole), kills=10)
    assert result(whole).keys() == result(out).keys()
    assert all((value == result(out)[name]).all() for name, value in result(whole).items())
    assert losses(out) == losses(whole)


def test_kills_change_nothing_with_multi_crop_views(tmp_path):
    source = make_folder(tmp_path / "images", classes=3, each=20, width=32, height=28)
    whole, out = tmp_path / "whole", tmp_path / "killed"

    def words(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        return [sys.executable, "-m", "tests.training.multi_crop_run", str(source), str(folder)]

    subprocess.run(words(whole), check=True, capture_output=True)
    kill_often(words(out), out, seconds_of(whole), kills=4)
    one, other = (torch.load(folder / "weights.pt") for folder in (whole, out))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert losses(out) == losses(whole)


def checkpoint_names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").glob("step-*.pt"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_exit_with_their_code(folder, tmp_path, number, code):
    flags = [*COMMON, "--epochs", "3000", "--checkpoint.every-seconds", "3600"]
    out = tmp_path / "run"
    process = subprocess.Popen(command(folder, out, *flags), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: (out / "metrics.jsonl").exists())
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == code
    assert "continue with --resume" in message
    (name,) = checkpoint_names(out)
    again = subprocess.Popen(command(folder, out, *flags, "--resume"), stderr=subprocess.PIPE, text=True)
    line = next(line for line in again.stderr if "Resuming" in line)
    again.kill()
    again.communicate()
    assert f"Resuming at step {int(name[5:13])} of" in line


def test_a_full_disk_leaves_the_last_checkpoint_whole(folder, tmp_path):
    """The limit on a file's size stands in for the disk: the best epoch's weights make later checkpoints larger."""
    out = tmp_path / "run"
    flags = [*COMMON, "--checkpoint.every-seconds", "0", "--epochs", "2"]
    train(folder, out, *flags)
    size = next((out / "checkpoints").iterdir()).stat().st_size
    (out / "result.json").unlink()
    (out / "checkpoints" / checkpoint_names(out)[-1]).unlink()
    kept = checkpoint_names(out)
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2})); "
        f"from vitling.cli import main; main({command(folder, out, *flags, '--resume')[3:]!r})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 3, ended.stderr
    assert "disk is full" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert checkpoint_names(out) == kept
    assert not list((out / "checkpoints").glob(".*"))
    train(folder, out, *flags, "--resume")


def test_two_processes_give_the_weights_of_one(tmp_path):
    """33 images in batches of 8: the last batch has one image, less than there are processes. Mixing and DRLoc are
    on."""
    source = make_folder(tmp_path / "images", classes=3, each=11)
    aux = ["--aux", "drloc", "--drloc.hidden", "32", "--drloc.weight", "1"]
    flags = [*COMMON, *aux, "--epochs", "3", "--objective.drop-path", "0", "--optim.lr", "1e-3"]
    train(source, tmp_path / "one", *flags)
    still = [*flags[:-1], "1e-30", "--optim.weight-decay", "0"]
    train(source, tmp_path / "start", *still)
    train_in_two(source, tmp_path / "two", *flags)
    assert relative_distance(result(tmp_path / "one"), result(tmp_path / "two"), result(tmp_path / "start")) < 1e-3
    for (e, s, a), (f, t, b) in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert (e, s) == (f, t)
        assert abs(a - b) < 1e-5
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2


def test_two_processes_train_all_stages(folder, tmp_path):
    """A stage starts from files that the first process wrote."""
    flags = [*("--size", "16", "--pretrain-size", "8", "--final-size", "32", "--backbone", "vit_nano_patch4_32")]
    flags += ["--pretrain-epochs", "2", "--epochs", "2", *COMMON[2:4], *COMMON[6:]]
    train_in_two(folder, tmp_path / "run", *flags)
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert list(written["stages"]) == ["pretrain", "finetune", "large"]
    train_in_two(folder, tmp_path / "timed", *flags[:8], *COMMON[2:4], *COMMON[6:], "--minutes", "0.5")
    assert "finetune" in json.loads((tmp_path / "timed" / "result.json").read_text())["stages"]


def test_two_processes_train_several_seeds(folder, tmp_path):
    train_in_two(folder, tmp_path / "seeds", *COMMON, "--epochs", "1", "--seeds", "2")
    assert json.loads((tmp_path / "seeds" / "seeds.json").read_text())["seeds"] == [0, 1]


def test_a_dead_peer_ends_the_run(folder, tmp_path):
    flags = [*COMMON, "--epochs", "100000"]
    out = tmp_path / "run"
    process = subprocess.Popen(torchrun(folder, out, *flags), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: (out / "metrics.jsonl").exists())
        os.kill(peer(out, rank=1), signal.SIGKILL)
        assert process.wait(timeout=90) != 0
    finally:
        process.kill()


def peer(out: Path, rank: int) -> int:
    """Return the process id of a rank of the run in `out`."""
    for folder in Path("/proc").iterdir():
        try:
            ours = folder.name.isdigit() and str(out).encode() in (folder / "cmdline").read_bytes()
            if ours and f"\0RANK={rank}\0".encode() in (folder / "environ").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "are missing: RANK, MASTER_ADDR, MASTER_PORT. Start the processes with torchrun, or unset"),
        ({"RANK": "0"}, "are missing: MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "5", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "RANK=5 must be from 0 to 1"),
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "abc"}, "MASTER_PORT is 'abc'"),
        ({"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}, "MASTER_PORT=0 is not a port"),
    ],
)
def test_incomplete_variables_of_torchrun_are_named(variables, message, monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message), init_processes("cpu"):
        pass
