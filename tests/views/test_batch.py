from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.views.batches import NORMALISE, N, batch_key, render
from vitling.keys import make_key, make_rng
from vitling.views import Group, Mix, Normaliser, Plan, Policy, Renderer, ViewBatch

POLICY = Policy(erase=0.5)
MULTI_CROP = Plan((Group(16, 2, POLICY, Mix(mixup=0.8, cutmix=1.0)), Group(8, 3, POLICY, Mix(cutmix=1.0, per="batch"))))


@pytest.mark.parametrize(("per", "parts"), [("image", 1), ("batch", 1), ("image", 5), ("batch", 5)])
def test_a_slice_renders_the_same_views_as_the_whole_batch(per, parts):
    """Two processes, or two accumulated passes, render the same pictures as one, mixing partners included."""
    plan = Plan(tuple(replace(g, mix=replace(g.mix, per=per, parts=parts)) for g in MULTI_CROP.groups))
    whole = render(plan)
    for local in (range(5), range(5, N), [3]):
        for ours, theirs in zip(render(plan, batch_key(), local), whole):
            rows = torch.cat([torch.tensor(list(local)) + N * view for view in range(theirs.count)])
            assert torch.equal(ours.pixels, theirs.pixels[rows])
            assert torch.equal(ours.partner, theirs.partner[rows])
            assert torch.equal(ours.lam, theirs.lam[rows])


def test_an_image_looks_the_same_in_any_batch():
    plan = Plan((Group(16, 2, POLICY),))
    alone = render(plan, batch_key(ids=[7]), [0])[0].pixels
    together = render(plan)[0].pixels
    assert torch.equal(alone[0], together[7])
    assert torch.equal(alone[1], together[N + 7])


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 3}])
def test_another_seed_or_epoch_looks_different(change):
    plan = Plan((Group(16, 1, POLICY),))
    before, after = (render(plan, batch_key(**c))[0].pixels for c in ({}, change))
    assert not any(torch.equal(a, b) for a, b in zip(before, after))


def test_views_of_an_image_differ_and_sizes_fit():
    first, second = render(MULTI_CROP)
    assert first.pixels.shape == (2 * N, 3, 16, 16)
    assert second.pixels.shape == (3 * N, 3, 8, 8)
    assert not torch.equal(first.pixels[:N], first.pixels[N:])


def test_a_repeated_image_looks_different_each_time():
    plan = Plan((Group(16, 1, POLICY),))
    one, again = render(plan, batch_key(ids=[4, 4 + N]), [0, 1])[0].pixels
    assert not torch.equal(one, again)


def test_partners_are_named_by_instance_and_mixed_by_lambda():
    plain = Policy(scale=(1, 1), ratio=(1, 1), steps=())
    plan = Plan((Group(16, 1, plain, Mix(mixup=1.0)),))
    flat = torch.arange(N, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 20, 20) * 20
    view_batch = ViewBatch(plan, batch_key(), np.arange(N))
    views = view_batch.render(flat, torch.ones(N), Renderer(Normaliser((0.0,) * 3, (1.0,) * 3)))[0]
    expected = (views.lam * torch.arange(N) + (1 - views.lam) * views.partner) * 20 / 255
    assert torch.allclose(views.pixels[:, 0, 3, 3], expected, atol=1e-4)


def test_partners_cover_the_batch():
    views = render(Plan((Group(8, 1, POLICY, Mix(cutmix=1.0)),)))[0]
    assert sorted(views.partner.tolist()) == list(range(N))


def test_one_draw_per_batch_gives_one_lambda():
    views = render(Plan((Group(8, 2, POLICY, Mix(mixup=1.0, per="batch")),)))[0]
    assert len(views.lam.unique()) == 1


@pytest.mark.parametrize("parts", [1, 3, 5, N, N + 4])
def test_parts_of_a_batch_are_mixed_separately(parts):
    """As on that many GPUs: partners come from the same GPU in every view, and each GPU draws its own lambda."""
    views = render(Plan((Group(8, 2, POLICY, Mix(mixup=1.0, per="batch", parts=parts)),)))[0]
    partner, lam = views.partner.reshape(2, N), views.lam.reshape(2, N)
    assert sorted(views.partner.tolist()) == sorted([*range(N)] * 2)
    assert torch.equal(lam[0], lam[1])
    gpus = torch.split(torch.arange(N), torch.unique_consecutive(lam[0], return_counts=True)[1].tolist())
    assert len(gpus) == min(parts, N)
    assert max(map(len, gpus)) - min(map(len, gpus)) <= 1
    for gpu in gpus:
        assert sorted(partner[:, gpu].ravel().tolist()) == sorted(gpu.tolist() * 2)


def test_one_part_keeps_the_draws_of_earlier_versions():
    """Results of earlier versions stay reproducible."""
    view_batch = ViewBatch(Plan((Group(8, 2, POLICY, Mix(cutmix=1.0, per="batch")),)), batch_key(), np.arange(N))
    _, own, partner, _, mixing = view_batch.indices()[0]
    assert partner.tolist() == make_rng("partner", 0, 2, 1, 0).permutation(2 * N).tolist()
    assert set(mixing.tolist()) == {make_key("mix", 0, 2, 1, 0)}
    assert own.tolist() == list(range(2 * N))


def test_normalisation_is_per_channel():
    plan = Plan((Group(16, 1, Policy(scale=(1, 1), ratio=(1, 1), steps=())),))
    white = torch.full((1, 3, 20, 20), 255, dtype=torch.uint8)
    views = ViewBatch(plan, batch_key(ids=[0], instances=1), np.array([0])).render(
        white, torch.ones(1), Renderer(NORMALISE)
    )[0]
    assert torch.allclose(views.pixels[0, :, 5, 5], torch.tensor([0.5, 0.6, 0.7]) / 0.2, atol=1e-4)
