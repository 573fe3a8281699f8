"""Conditions under which a step is captured. Values of captured steps are tested on GPUs (test_cuda.py)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitling.training import replay
from vitling.training.replay import MAX_CAPTURES, Replay
from vitling.views import Views

IDS = np.arange(4)


class Fake:
    pool = None

    def __init__(self, views, images, learn, update, device, pool):
        self.views = views


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def replayer(monkeypatch, warnings):
    monkeypatch.setattr(replay, "_CapturedStep", Fake)
    return Replay(torch.device("cpu"), warnings.append)


def views(size: int = 4) -> list[Views]:
    return [Views(torch.zeros(size, 3, 2, 2), 1)]


def get(replayer, some, ids=IDS):
    return replayer.get_capture(some, ids, lambda views, ids: {}, lambda: torch.zeros(()))


def test_step_is_captured_when_view_addresses_repeat(replayer):
    some = views()
    assert get(replayer, some) is None
    capture = get(replayer, some)
    assert capture.views is some
    assert get(replayer, some) is capture
    assert get(replayer, views()) is None


def test_another_size_is_another_capture(replayer):
    whole, last = views(), views(2)
    for _ in range(3):
        pair = get(replayer, whole), get(replayer, last, IDS[:2])
    assert None not in pair
    assert pair[0] is not pair[1]


def test_changing_view_addresses_are_never_captured(replayer):
    several = [views() for _ in range(100)]
    assert not any(get(replayer, some) for some in several)
    assert len(replayer.seen) <= 4 * MAX_CAPTURES + 1


def test_the_number_of_captures_is_limited(replayer):
    several = [views() for _ in range(MAX_CAPTURES + 2)]
    found = [[get(replayer, some) for _ in range(2)][-1] for some in several]
    assert sum(capture is not None for capture in found) == MAX_CAPTURES
    replayer.forget()
    assert get(replayer, several[0]) is None


def test_another_phase_is_captured_anew(replayer):
    some = views()
    first = [get(replayer, some) for _ in range(2)][-1]
    replayer.enter(0)
    assert get(replayer, some) is first
    replayer.enter(1)
    assert get(replayer, some) is None
    assert get(replayer, some) is not first


def test_a_failure_is_warned_about_once(replayer, warnings, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(replay, "_CapturedStep", fails)
    one, other = views(), views()
    assert [get(replayer, some) for some in (one, one, one, other, other)] == [None] * 5
    assert len(warnings) == 1
    assert "operation not permitted when stream is capturing)" in warnings[0]
