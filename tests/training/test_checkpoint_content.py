"""Checkpoints whose parts cannot be resumed, from another program or an older version without a digest."""

from __future__ import annotations

import math

import pytest
import torch

from tests.training.helpers import config, latest, objective, run_in
from vitling.errors import InvalidFile
from vitling.training.checkpoint import Checkpoints
from vitling.training.checkpoint_content import _is_plain
from vitling.training.loop import fit

GROUP = {
    "weight_decay": [{1: 2}, None, True, math.nan, "0.1", torch.ones(2), torch.ones((), dtype=torch.complex64)],
    "betas": [None, 0.9, (0.9,), (0.9, 1 + 2j), (0.9, "x")],
    "eps": [(0, 0), math.inf],
    "maximize": [1, "yes"],
}
STEPS = [
    torch.empty((), device="meta"),
    torch.zeros((), dtype=torch.complex64),
    torch.tensor(-1.0),
    torch.tensor(math.nan),
    torch.zeros(()).to_sparse(),
]
MOMENTS = [lambda t: t[:1].expand(t.shape), lambda t: t.to(torch.complex64), lambda t: t.int()]
LENGTHS = [{"epochs": 10**9, "shift": 1e308}, {"epochs": 2**63 - 1, "shift": -1.0}]


@pytest.fixture
def resume(store, tmp_path):
    """Return a function that changes the last checkpoint and resumes from it."""
    settings = config(epochs=2)
    fit(objective(), store, settings, run=run_in(tmp_path / "run"))

    def change(edit) -> None:
        state = latest(tmp_path / "run")
        edit(state)
        checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", keep=1)
        for old in checkpoints.all():
            old.unlink()
        checkpoints.save(state["step"], state)
        fit(objective(), store, config(epochs=3), run=run_in(tmp_path / "run"))

    return change


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GROUP.items() for value in values])
def test_settings_of_the_optimiser(resume, name, value):
    with pytest.raises(InvalidFile, match="optimiser has other settings"):
        resume(lambda state: state["optimiser"]["param_groups"][0].update({name: value}))


@pytest.mark.parametrize("step", STEPS, ids=["meta", "complex", "negative", "nan", "sparse"])
def test_steps_of_the_optimiser(resume, step):
    with pytest.raises(InvalidFile, match="optimiser"):
        resume(lambda state: state["optimiser"]["state"][0].update(step=step))


@pytest.mark.parametrize("damage", MOMENTS, ids=["expanded", "complex", "integers"])
def test_moments_of_the_optimiser(resume, damage):
    def edit(state):
        moments = next(m for m in state["optimiser"]["state"].values() if m["exp_avg"].shape[:1].numel() > 1)
        moments["exp_avg"] = damage(moments["exp_avg"])

    with pytest.raises(InvalidFile, match="not a plain tensor"):
        resume(edit)


@pytest.mark.parametrize("length", LENGTHS)
def test_impossible_lengths_are_refused(resume, length):
    with pytest.raises(InvalidFile, match="length"):
        resume(lambda state: state.update(length=length))


def test_an_intact_checkpoint_is_resumed(resume):
    resume(lambda state: None)


def test_plain_tensors_share_no_memory():
    base = torch.zeros(4, 3, 2, 2)
    for own in (
        base,
        base.mT,
        base[1:],
        base[:, ::2],
        base.to(memory_format=torch.channels_last),
        base[:0],
        base[0, 0, 0, 0],
    ):
        assert _is_plain(own)
    for shared in (
        base[:1].expand(4, 3, 2, 2),
        torch.arange(9).as_strided((3, 2), (2, 2)),
        torch.ones(5).unfold(0, 3, 1),
    ):
        assert not _is_plain(shared)
