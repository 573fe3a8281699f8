"""Checkpoints: their digest, what is kept, and what is passed over."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from vitling.errors import UserError
from vitling.training import checkpoint
from vitling.training.checkpoint import Checkpoints
from vitling.training.continuing import load_checkpoint

CPU = torch.device("cpu")


@pytest.fixture
def saved(tmp_path) -> Checkpoints:
    """Two checkpoints, of steps 1 and 2."""
    (tmp_path / "checkpoints").mkdir()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (1, 2):
        checkpoints.save(step, {"step": step, "weights": torch.full((100,), float(step))})
    return checkpoints


def flip_bit(path: Path, place: float, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)


def load(checkpoints: Checkpoints) -> tuple[int, list[str]]:
    warnings: list[str] = []
    state = checkpoints.load_latest(CPU, warnings.append)
    return (state or {"step": 0})["step"], warnings


@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_bit_is_noticed(saved, place, bit):
    flip_bit(saved.all()[-1], place, bit)
    assert load(saved) == (1, ["step-00000002.pt is damaged (DamagedCheckpointError); trying the one before."])


def test_a_checkpoint_that_cannot_be_opened_is_not_taken_for_damaged(saved, monkeypatch):
    def fail(path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(checkpoint, "_check_digest", fail)
    with pytest.raises(OSError, match="Too many open files"):
        load(saved)


@pytest.mark.parametrize("length", [0, 1, 100, -1, -80, -200])
def test_a_file_that_ends_early_is_noticed(saved, length):
    newest = saved.all()[-1]
    newest.write_bytes(newest.read_bytes()[:length])
    step, warnings = load(saved)
    assert (step, len(warnings)) == (1, 1) if length not in (-1, -80) else step in (1, 2)


def test_torch_loads_checkpoints_and_older_ones_without_a_digest_are_read(saved):
    newest = saved.all()[-1]
    state = torch.load(newest, weights_only=True)
    torch.save(state | {"step": 7}, newest)
    assert load(saved) == (7, [])


def test_a_damaged_newer_one_never_displaces_a_good_one(saved):
    """After a fallback to step 1, the run saves step 1 again or one between; with keep=1 that must stay."""
    saved.all()[-1].write_bytes(b"damaged")
    once = Checkpoints(saved.folder, keep=1)
    once.save(1, {"step": 1})
    assert [path.name for path in once.all()] == ["step-00000001.pt"]
    assert load(once) == (1, [])


def test_without_an_intact_checkpoint_there_is_nothing_to_load(saved):
    for path in saved.all():
        path.write_bytes(b"")
    step, warnings = load(saved)
    assert (step, len(warnings)) == (0, 2)


def test_a_named_checkpoint_that_is_damaged_is_refused(saved):
    newest = saved.all()[-1]
    flip_bit(newest, 0.5)
    with pytest.raises(UserError, match="is damaged"):
        load_checkpoint(newest, CPU, print)
