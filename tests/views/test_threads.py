from __future__ import annotations

import os
import signal

import pytest
import torch

from vitling.views.threads import CHUNK, render_in_threads


def render(seeds, pixels, aspect):
    """Return rows view by view, like a group's views."""
    views = len(seeds) // len(pixels)
    return seeds[:, None].float() * pixels.float().repeat(views, 1) + aspect.repeat(views)[:, None]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("batch", [1, CHUNK, CHUNK + 1, 5 * CHUNK - 3])
def test_chunks_match_a_single_call(two_threads, batch):
    generator = torch.Generator().manual_seed(batch)
    seeds = torch.randint(0, 99, (3 * batch,), generator=generator)
    pixels, aspect = torch.rand(batch, 6, generator=generator), torch.rand(batch, generator=generator)
    assert torch.equal(render_in_threads(render, seeds, pixels, aspect), render(seeds, pixels, aspect))
    assert torch.get_num_threads() == 2


def test_an_error_in_a_thread_is_raised(two_threads):
    def broken(seeds, pixels, aspect):
        raise ValueError("no pixels")

    with pytest.raises(ValueError, match="no pixels"):
        render_in_threads(broken, torch.zeros(40), torch.zeros(40, 1), torch.zeros(40))
    assert torch.get_num_threads() == 2


def test_a_fork_starts_its_own_threads(two_threads):
    seeds, pixels, aspect = torch.arange(40), torch.ones(40, 2), torch.ones(40)
    render_in_threads(render, seeds, pixels, aspect)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # the inherited pool would wait for ever
        os._exit(0 if render_in_threads(render, seeds, pixels, aspect).shape == (40, 2) else 1)
    assert os.waitpid(child, 0)[1] == 0
