"""Runs with a deadline: their number of epochs follows the pace, and their schedules end with them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.conftest import make_image
from tests.training.helpers import (
    ALONE,
    Score,
    config,
    equal,
    latest,
    lines,
    objective,
    open_store,
    run_in,
    run_two_processes,
    weights,
)
from vitling.console import Log
from vitling.errors import Interrupted, InvalidFile
from vitling.loading import read_json
from vitling.objectives.progress import Progress
from vitling.training import CheckpointConfig, OptimConfig, deadline, fit
from vitling.training.checkpoint_content import check_types
from vitling.training.deadline import Deadline
from vitling.training.trainer import Trainer

IMAGES, BATCH = 32, 8
PER_EPOCH = IMAGES // BATCH


@pytest.fixture
def store(tmp_path):
    for i in range(IMAGES):
        path = tmp_path / "images" / f"c{i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(i % 3, i).save(path)
    return open_store(tmp_path / "images")


class Machine:
    """A clock that only training steps advance, by seconds that depend on the step; `compiling` is a part of them."""

    def __init__(self, monkeypatch, seconds_per_step, compiling=lambda step: 0.0):
        self.now, self.taken = 100.0, 0
        take = Trainer.step
        monkeypatch.setattr(deadline.time, "monotonic", lambda: self.now)

        def step(trainer, loaded):
            self.now += seconds_per_step(trainer.done)
            trainer.seconds_compiling += compiling(trainer.done)
            self.taken += 1
            return take(trainer, loaded)

        monkeypatch.setattr(Trainer, "step", step)


def train(store, folder, epochs, limit=None, **changes):
    settings = config(epochs=epochs, batch=BATCH, checkpoint=CheckpointConfig(1e9), **changes)
    model = objective()
    return model, fit(model, store, settings, run=run_in(folder), deadline=limit)


# --- length -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.97, 1.0, 1.02, 0.85])
def test_a_run_at_about_the_measured_pace_keeps_its_epochs_and_weights(store, tmp_path, monkeypatch, seconds):
    plain, _ = train(store, tmp_path / "plain", 10)
    machine = Machine(monkeypatch, lambda _: seconds)
    timed, outcome = train(store, tmp_path / "timed", 10, Deadline(10 * PER_EPOCH, 100))
    assert outcome.epochs == 10
    assert machine.taken == 10 * PER_EPOCH
    assert equal(weights(plain), weights(timed))


@pytest.mark.parametrize("planned", [1, 2, 5, 40])
@pytest.mark.parametrize("fits", [3, 20])
def test_the_time_is_used_whatever_was_planned(store, tmp_path, monkeypatch, planned, fits):
    machine = Machine(monkeypatch, lambda _: 1.0)
    _, outcome = train(store, tmp_path / "run", planned, Deadline(fits * PER_EPOCH, 100))
    assert outcome.steps == machine.taken == outcome.epochs * PER_EPOCH
    if (planned, fits) != (1, 3):  # its few steps end before three of them are measured
        assert 0.6 * fits <= outcome.epochs <= fits + 1


def test_a_machine_that_becomes_slower_ends_in_time(store, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lambda step: 1.0 if step < 20 else 4.0)
    _, outcome = train(store, tmp_path / "run", 20, Deadline(20 * PER_EPOCH, 20))
    assert machine.now - 100 <= 1.1 * 20 * PER_EPOCH
    assert 5 <= outcome.epochs < 12


def test_a_burst_of_other_work_in_the_beginning_is_made_up_for(store, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lambda step: 5.0 if step < 8 else 0.5)
    _, outcome = train(store, tmp_path / "run", 4, Deadline(80, 1000))
    assert 0.75 * 80 <= machine.now - 100 <= 80
    assert outcome.epochs >= 15


@pytest.mark.parametrize("burst", [7, 20, 61])
def test_bursts_of_other_work_change_the_length_few_times(store, tmp_path, monkeypatch, burst):
    """Every other burst of steps is three times as slow; the plan is that of the quick ones."""
    machine = Machine(monkeypatch, lambda step: 1.0 if step // burst % 2 else 3.0)
    _, outcome = train(store, tmp_path / "run", 100, Deadline(100 * PER_EPOCH, 100))
    changes = [line for line in lines(tmp_path / "run") if line["kind"] == "length"]
    assert len(changes) <= 8
    assert 40 <= outcome.epochs <= 60
    assert 0.75 * 400 <= machine.now - 100 <= 1.05 * 400


def test_a_run_has_no_more_epochs_than_its_limit(store, tmp_path, monkeypatch):
    Machine(monkeypatch, lambda _: 0.01)
    assert train(store, tmp_path / "run", 12, Deadline(1000, 12))[1].epochs == 12


def test_a_run_that_is_overdue_finishes_the_epoch_that_has_begun(store, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lambda _: 10.0)
    _, outcome = train(store, tmp_path / "run", 50, Deadline(0, 50))
    assert outcome.epochs == machine.taken / PER_EPOCH <= 2


def test_steps_that_compile_are_not_measured(store, tmp_path, monkeypatch):
    machine = Machine(monkeypatch, lambda step: 12.0 if step == 3 else 1.0, lambda step: 12.0 * (step == 3))
    _, outcome = train(store, tmp_path / "run", 20, Deadline(20 * PER_EPOCH + 11, 40))
    assert outcome.epochs == 20
    assert machine.taken == 20 * PER_EPOCH


def test_a_twin_gets_its_share_of_the_time_and_the_epochs(monkeypatch):
    monkeypatch.setattr(deadline.time, "monotonic", lambda: 5.0)
    twin = Deadline(120, 400).share(1 / 6, 0.25)
    assert (twin.seconds, twin.end, twin.max_epochs) == (20, 25, 100)


@pytest.mark.parametrize(("excused", "epochs"), [(True, 20), (False, 4)])
def test_compiling_can_extend_the_deadline(store, tmp_path, monkeypatch, excused, epochs):
    seconds = 16 * PER_EPOCH
    Machine(monkeypatch, lambda step: 1 + seconds * (step == 0), lambda step: seconds * (step == 0))
    _, outcome = train(store, tmp_path / "run", 20, Deadline(20 * PER_EPOCH + 1, 40, excused))
    assert abs(outcome.epochs - epochs) <= 1


def test_two_processes_of_unequal_pace_agree(store, tmp_path):
    run_two_processes("tests.training.deadline_run", tmp_path / "images", tmp_path / "out")
    slow, quick = (read_json(tmp_path / "out" / f"{rank}.json") for rank in (0, 1))
    assert slow == quick
    assert 10 < slow["epochs"] < 20  # 24 would fit at one pace, 8 at the other, 12 at their mean


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_continue_from_where_they_are_and_end_with_the_run(store):
    trainer = Trainer(objective(), store, config(epochs=10, batch=BATCH), ALONE, Log(silent=True))
    trainer.done, planned = 12, 10 * PER_EPOCH
    assert trainer.progress() == Progress(12, planned, 10)
    trainer.change_length(25)
    assert trainer.steps == 25 * PER_EPOCH
    for done in range(12, trainer.steps + 1):  # the literal version: the rest of the schedule over the rest of the run
        trainer.done = done
        expected = 12 / planned + (1 - 12 / planned) * (done - 12) / (trainer.steps - 12)
        assert trainer.progress().fraction == pytest.approx(expected)
        assert trainer.progress().epoch == pytest.approx(10 * expected)
    trainer.done = 60
    before = trainer.progress().fraction
    trainer.change_length(16)
    assert trainer.progress().fraction == pytest.approx(before)
    assert trainer.progress(16 * PER_EPOCH).fraction == pytest.approx(1)


def test_the_learning_rate_falls_to_its_floor_without_a_jump(store, tmp_path, monkeypatch):
    Machine(monkeypatch, lambda _: 1.0)
    optim = OptimConfig(lr=1e-3, min_lr=1e-5, warmup_epochs=0.0)
    _, outcome = train(store, tmp_path / "run", 4, Deadline(40 * PER_EPOCH, 100), optim=optim)
    written = lines(tmp_path / "run")
    epochs = [line for line in written if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == list(range(1, outcome.epochs + 1))
    assert [line["epochs"] for line in written if line["kind"] == "length"][-1] == outcome.epochs > 30
    rates = [line["lr"] for line in epochs]
    assert all(a >= b for a, b in pairwise(rates))
    peak = max(rates)
    assert rates[-1] < 0.02 * peak
    assert max(a - b for a, b in pairwise(rates[2:])) < 0.1 * peak


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["several epochs later", "at once"])
def test_a_resumed_run_keeps_its_new_length_and_is_bit_identical(store, tmp_path, monkeypatch, when):
    """At the deadline's steady pace, the length changes once, so that a run without a kill has the same one."""
    Machine(monkeypatch, lambda _: 1.0)
    whole, outcome = train(store, tmp_path / "whole", 4, Deadline(20 * PER_EPOCH, 100))
    (change,) = [line for line in lines(tmp_path / "whole") if line["kind"] == "length"]
    killed_at = 11 * PER_EPOCH + 2 if when == "several epochs later" else PER_EPOCH * change["epoch"]
    taken = Trainer.step

    def stop(trainer, loaded):
        if trainer.done == killed_at:
            raise KeyboardInterrupt
        return taken(trainer, loaded)

    settings = config(epochs=4, batch=BATCH, checkpoint=CheckpointConfig(0.0))
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            fit(objective(), store, settings, run=run_in(tmp_path / "run"), deadline=Deadline(20 * PER_EPOCH, 100))
    model = objective()
    resumed = fit(model, store, settings, run=run_in(tmp_path / "run"))
    assert resumed.epochs == outcome.epochs == change["epochs"] > 12
    assert equal(weights(whole), weights(model))


def test_evaluations_stay_as_many_as_planned(store, tmp_path, monkeypatch):
    Machine(monkeypatch, lambda _: 1.0)
    watcher = Score(*range(100), every=1)
    settings = config(epochs=5, batch=BATCH, checkpoint=CheckpointConfig(1e9))
    limit = Deadline(50 * PER_EPOCH, 100)
    found = fit(objective(), store, settings, [watcher], run=run_in(tmp_path / "run"), deadline=limit)
    assert found.epochs > 40
    assert len(watcher.seen) <= 10
    assert watcher.seen[-1][0] == found.epochs


@pytest.mark.parametrize("shift", [math.nan, math.inf, -50.0, "much"])
def test_an_impossible_position_is_refused(store, tmp_path, shift):
    train(store, tmp_path / "run", 1)
    state = latest(tmp_path / "run")
    check_types(tmp_path, state)
    state["length"] = {"epochs": 4, "shift": shift}
    with pytest.raises(InvalidFile, match=r"length|shift"):
        check_types(tmp_path, state)
