"""When a step is recorded; what a recording gives, only a GPU can show (test_cuda.py)."""

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
def said():
    return []


@pytest.fixture
def player(monkeypatch, said):
    monkeypatch.setattr(replay, "_CapturedStep", Fake)
    return Replay(torch.device("cpu"), said.append)


def views(size: int = 4) -> list[Views]:
    return [Views(torch.zeros(size, 3, 2, 2), 1)]


def ask(player, some, ids=IDS):
    return player.get_capture(some, ids, lambda views, ids: {}, lambda: torch.zeros(()))


def test_a_batch_is_recorded_when_its_views_lie_where_others_lay(player):
    some = views()
    assert ask(player, some) is None
    recording = ask(player, some)
    assert recording.views is some
    assert ask(player, some) is recording
    assert ask(player, views()) is None


def test_another_size_is_another_recording(player):
    whole, last = views(), views(2)
    for _ in range(3):
        pair = ask(player, whole), ask(player, last, IDS[:2])
    assert None not in pair
    assert pair[0] is not pair[1]


def test_views_that_always_lie_elsewhere_cost_nothing(player):
    kept = [views() for _ in range(100)]
    assert not any(ask(player, some) for some in kept)
    assert len(player.seen) <= 4 * MAX_CAPTURES + 1


def test_there_are_only_so_many(player):
    kept = [views() for _ in range(MAX_CAPTURES + 2)]
    found = [[ask(player, some) for _ in range(2)][-1] for some in kept]
    assert sum(recording is not None for recording in found) == MAX_CAPTURES
    player.forget()
    assert ask(player, kept[0]) is None


def test_another_phase_is_recorded_anew(player):
    some = views()
    first = [ask(player, some) for _ in range(2)][-1]
    player.enter(0)
    assert ask(player, some) is first
    player.enter(1)
    assert ask(player, some) is None
    assert ask(player, some) is not first


def test_a_failure_is_said_once(player, said, monkeypatch):
    def fails(*given):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(replay, "_CapturedStep", fails)
    one, other = views(), views()
    assert [ask(player, some) for some in (one, one, one, other, other)] == [None] * 5
    assert len(said) == 1
    assert "operation not permitted when stream is capturing)" in said[0]
