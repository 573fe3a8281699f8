"""The momentum copy, in every method that has one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from tests.methods.helpers import METHODS, START, batch_of, make, noise, step
from vitling.backbones import create
from vitling.objectives import Objective
from vitling.objectives.momentum import MomentumCopy, cosine_momentum
from vitling.objectives.progress import Progress


def get_copy(objective: Objective) -> MomentumCopy:
    (found,) = (module for module in objective.children() if isinstance(module, MomentumCopy))
    return found


MOMENTA = {
    "densecl": lambda t: 0.999,
    "moco-v2": lambda t: 0.999,
    "moco-v3": lambda t: 1 - 0.01 * (math.cos(math.pi * t) + 1) / 2,
    "byol": lambda t: 1 - 0.004 * (math.cos(math.pi * t) + 1) / 2,
    "dino": lambda t: 1 - 0.004 * (math.cos(math.pi * t) + 1) / 2,
    "esvit": lambda t: 1 - 0.004 * (math.cos(math.pi * t) + 1) / 2,
}


@pytest.mark.parametrize("method", METHODS)
def test_only_follow_moves_the_copy(method):
    """Check two steps bit by bit; the copy starts equal to the network."""
    objective = make(method)
    optimiser = torch.optim.AdamW(objective.param_groups(0.1), lr=1e-2)
    slow = get_copy(objective)
    head = objective.projector if hasattr(objective, "projector") else objective.head
    for s in (10, 60):
        expected = [p.clone() for p in slow.parameters()]
        if s == 10:
            assert all(torch.equal(p, q) for p, q in zip(expected, slow.fast, strict=True))
        step(objective, optimiser, seed=s, progress=Progress(s, 100, 10))
        for before, now, followed in zip(expected, slow.parameters(), slow.fast, strict=True):
            assert torch.equal(now, torch.lerp(before, followed, 1 - MOMENTA[method](s / 100)))
            assert now.grad is None
            assert not now.requires_grad
    regions = {"esvit": "region_head", "densecl": "dense_head"}.get(method)
    more = getattr(objective, regions).parameters() if regions else ()
    assert [*objective.backbone.parameters(), *head.parameters(), *more] == slow.fast


@pytest.mark.parametrize("method", METHODS)
def test_gradients_reach_trained_parameters_only(method):
    objective = make(method)
    objective.total(objective(noise(objective, 4), batch_of(4), START), START).backward()
    for name, p in objective.named_parameters():
        frozen = name.startswith(("copy.", "teacher.")) or (method == "moco-v3" and "patch_embed" in name)
        assert p.requires_grad != frozen, name
        assert (p.grad is not None and p.grad.abs().sum() > 0) != frozen, name
    trained = [p for group in objective.param_groups(0.1) for p in group["params"]]
    assert len(trained) == sum(p.requires_grad for p in objective.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_holds_the_whole_state(method):
    """Two steps equal one step, its checkpoint loaded into a new objective, and another step."""
    whole, first, second = (make(method) for _ in range(3))
    made = [torch.optim.AdamW(o.param_groups(0.1), lr=1e-2) for o in (whole, first, second)]
    step(whole, made[0], 1)
    step(whole, made[0], 2, Progress(50, 100, 10))
    step(first, made[1], 1)
    with torch.no_grad():
        for p in second.parameters():
            p.normal_()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    made[2].load_state_dict(copy.deepcopy(made[1].state_dict()))
    step(second, made[2], 2, Progress(50, 100, 10))
    for (name, a), b in zip(whole.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("method", METHODS)
def test_a_copied_objective_follows_itself(method):
    """--minutes measures the pace of a copy."""
    objective = make(method)
    other = copy.deepcopy(objective)
    before = [p.clone() for p in objective.parameters()]
    step(other, torch.optim.SGD(other.param_groups(0.0), lr=1.0), 1)
    slow = get_copy(other)
    assert all(p is q for p, q in zip(slow.fast, [*other.backbone.parameters()]))
    assert not all(torch.equal(p, q) for p, q in zip(slow.parameters(), get_copy(objective).parameters()))
    assert all(torch.equal(p, q) for p, q in zip(before, objective.parameters(), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_both_networks_are_compiled_and_steps_are_capturable(method):
    objective = make(method)
    assert objective.networks() == [objective.backbone, get_copy(objective).backbone]
    assert objective.capturable
    views = noise(objective, 4)  # progress is not used
    assert objective(views, batch_of(4), None).keys() == objective(views, batch_of(4), START).keys()


@pytest.mark.parametrize("method", METHODS)
def test_losses_are_in_full_precision(method):
    objective = make(method)
    views, batch = noise(objective, 4), batch_of(4)
    exact = objective(views, batch, START)
    with torch.autocast("cpu", torch.bfloat16):
        terms = objective(views, batch, START)
    for name, term in terms.items():
        assert term.dtype == torch.float32
        torch.testing.assert_close(term, exact[name], rtol=0.05, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_falls(method, monkeypatch):
    """Train on the same views of four images while the targets stay fixed."""
    objective = make(method)
    monkeypatch.setattr(objective, "after_step", lambda progress: None)
    optimiser = torch.optim.AdamW(objective.param_groups(0.0), lr=3e-3)
    losses = [step(objective, optimiser, 0) for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def test_the_copy_drops_nothing_and_keeps_its_own_statistics():
    """The copy is in training mode, as in the methods' code, but stochastic depth and dropout are off."""
    student = create("t2t_vit_7", 64, drop_path=0.2)
    teacher = MomentumCopy(student, nn.Sequential(nn.Linear(256, 8), nn.BatchNorm1d(8)))
    assert teacher.training
    pixels = torch.randn(4, 3, 64, 64)
    one, again = (teacher.head(teacher.features(pixels).pooled) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(student(pixels).pooled, student(pixels).pooled)
    norm = teacher.head[1]
    assert norm.num_batches_tracked == 2
    mean = norm.running_mean.clone()
    teacher.follow(0.5)
    assert torch.equal(mean, norm.running_mean)


def test_the_momentum_rises_to_one():
    values = [cosine_momentum(0.9, Progress(step, 100, 10)) for step in range(101)]
    assert values[0] == pytest.approx(0.9)
    assert values[50] == pytest.approx(0.95)
    assert values[100] == 1
    assert values == sorted(values)
