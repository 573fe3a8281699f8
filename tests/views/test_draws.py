from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from vitling.keys import make_key, make_rng
from vitling.views.draws import Draws, TabulatedDraws, beta_quantiles, columns, make_seeds, operation_keys, tabulate

IDS = torch.arange(20_000)


def test_uniform_is_uniform():
    u = Draws.from_ids([make_key("test")], IDS).uniform("crop", 3)
    assert u.min() >= 0
    assert u.max() < 1
    for column in u.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-3


def test_a_draw_depends_only_on_its_own_image():
    key = make_key("view", 0, 3, 1)
    together = Draws.from_ids([key], IDS).uniform("crop", 4)
    shuffled = torch.randperm(len(IDS), generator=torch.Generator().manual_seed(1))
    assert torch.equal(Draws.from_ids([key], IDS[shuffled]).uniform("crop", 4), together[shuffled])
    assert torch.equal(Draws.from_ids([key], IDS[7:8]).uniform("crop", 4), together[7:8])


def test_fewer_numbers_are_a_prefix_of_more():
    draws = Draws.from_ids([1], IDS)
    assert torch.equal(draws.uniform("crop", 2), draws.uniform("crop", 5)[:, :2])


def test_tabulated_draws_match_hashed_draws():
    seeds, operations = torch.from_numpy(make_seeds([5], np.arange(50))), ("crop", "flip")
    table = tabulate(seeds, columns(seeds.device), operation_keys(operations, seeds.device))
    tabled, hashed = TabulatedDraws(table, operations), Draws.from_seeds(seeds, columns(seeds.device))
    assert tabled.images == hashed.images == 50
    assert torch.equal(tabled.uniform("crop", 22), hashed.uniform("crop", 22))
    assert torch.equal(tabled.chance("flip", 0.3), hashed.chance("flip", 0.3))
    with pytest.raises(ValueError, match="grey"):
        tabled.uniform("grey")


BASE = Draws.from_ids([make_key("view", 0, 0, 0)], IDS).uniform("a", 2)
OTHERS = {
    "view": Draws.from_ids([make_key("view", 0, 0, 1)], IDS).uniform("a"),
    "epoch": Draws.from_ids([make_key("view", 0, 1, 0)], IDS).uniform("a"),
    "seed": Draws.from_ids([make_key("view", 1, 0, 0)], IDS).uniform("a"),
    "operation": Draws.from_ids([make_key("view", 0, 0, 0)], IDS).uniform("b"),
    "neighbour": Draws.from_ids([make_key("view", 0, 0, 0)], IDS + 1).uniform("a"),
    "column": BASE[:, 1:],
}


@pytest.mark.parametrize("other", OTHERS)
def test_draws_are_independent(other):
    correlation = np.corrcoef(BASE[:, 0], OTHERS[other][:, 0])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(len(IDS))


def test_known_values_do_not_change():
    """A run that resumes after an update must draw the same numbers."""
    u = Draws.from_ids([make_key("view", 0, 0, 0)], torch.tensor([0, 1, 2039])).uniform("crop", 2)
    expected = [
        [0.27200162410736084, 0.5076600313186646],
        [0.6829941868782043, 0.06637758016586304],
        [0.14534801244735718, 0.049729883670806885],
    ]
    assert u.tolist() == expected


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0])
def test_beta_follows_its_distribution(alpha):
    drawn = Draws.from_ids([3], IDS).beta("mixup", beta_quantiles(alpha, IDS.device))
    reference = np.random.default_rng(0).beta(alpha, alpha, len(IDS)).astype(np.float32)  # it too rounds to 1
    assert stats.ks_2samp(drawn.numpy(), reference).pvalue > 1e-3


def test_chance_follows_its_probability():
    assert abs(Draws.from_ids([9], IDS).chance("flip", 0.3).float().mean() - 0.3) < 0.015


def test_generators_depend_on_their_whole_name():
    assert make_rng("order", 0, 1).integers(1 << 60) != make_rng("order", 1, 0).integers(1 << 60)
    assert make_key("a", 1) != make_key("a", "1")
