"""The measured pace: images per second of training without the slow first steps."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.training.helpers import ALONE
from vitling.console import Log
from vitling.training import pace

BATCH = 32


@pytest.mark.parametrize(
    ("first", "steps_at_most"),
    [([], 16), ([2.7], 16), ([2.7, 2.7, 1.0, 0.5], 24), ([0.9, 0.9], 20)],
    ids=["even", "one slow step", "four slow steps", "just below a second"],
)
def test_slow_first_steps_do_not_count(monkeypatch, first, steps_at_most):
    durations = take_turns(first, 0.2)
    measured, taken = measure(monkeypatch, durations)
    assert measured == pytest.approx(BATCH / 0.2, rel=0.2)
    assert taken <= steps_at_most


def test_steps_of_seconds_are_measured_in_few(monkeypatch):
    measured, taken = measure(monkeypatch, take_turns([], 8.0))
    assert measured == BATCH / 8
    assert taken == 3


@pytest.mark.parametrize(("first", "then"), [(12.0, 12.0), (12.0, 1.2)])
def test_of_very_slow_steps_the_second_is_measured(monkeypatch, first, then):
    measured, taken = measure(monkeypatch, take_turns([first], then))
    assert measured == BATCH / then
    assert taken == 2


@pytest.mark.parametrize("seconds", [0.003, 0.01, 0.024, 0.025, 0.039, 0.1])
@pytest.mark.parametrize(("compiling", "most"), [(True, 1.7), (False, 4.1)], ids=["compiled", "compiler failed"])
def test_compiled_steps_are_measured_in_about_a_second(monkeypatch, seconds, compiling, most):
    measured, taken = measure(monkeypatch, take_turns([], seconds), how="on", compiling=compiling)
    assert measured == pytest.approx(BATCH / seconds)
    assert (taken - 10 - pace.WARMUP_STEPS) * seconds < most


def take_turns(first, then):
    yield from first
    while True:
        yield then


def measure(monkeypatch, durations, how="off", compiling=False):
    """Measure a trainer whose steps take these seconds; return the pace and the number of steps."""
    taken = []

    def run_steps(trainer, source, steps):
        seconds = [next(durations) for _ in range(steps)]
        taken.extend(seconds)
        return sum(seconds), BATCH * steps

    @contextmanager
    def trial(*_):
        yield SimpleNamespace(compiling=compiling, per_epoch=10)

    monkeypatch.setattr(pace, "_choose_compile", lambda *_: how)
    monkeypatch.setattr(pace, "_trial_trainer", trial)
    monkeypatch.setattr(pace, "run_steps", run_steps)
    monkeypatch.setattr(pace, "iterate_batches", lambda _: None)
    store = SimpleNamespace(device=ALONE.device)
    return pace.measure_pace(None, store, None, ALONE, Log(silent=True))[0], len(taken)
