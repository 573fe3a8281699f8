from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from tests.training.helpers import objective
from vitling.errors import UserError
from vitling.training import OptimConfig
from vitling.training.config import FitConfig
from vitling.training.optim import (
    WeightDecaySchedule,
    fill_momentum_buffers,
    load_optimiser,
    make_optimiser,
    reset_step_counts,
    set_lr,
)


def one_step(optimiser, model) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    set_lr(optimiser, 0.5)
    optimiser.step()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_gpu_state_continues_on_a_cpu(name):
    """On GPUs the learning rate is a tensor and the optimiser is capturable."""
    model, other = objective(), objective()
    here, there = (make_optimiser(one, OptimConfig(name=name)) for one in (model, other))
    one_step(there, other)
    written = deepcopy(there.state_dict())
    for group in written["param_groups"]:
        group.update(lr=torch.tensor(0.5), fused=True, **({"capturable": True} if name == "adamw" else {}))
    model.load_state_dict(other.state_dict())
    load_optimiser(here, written)
    assert all(group["lr"] == 0.0 and not group.get("capturable") and not group["fused"] for group in here.param_groups)
    one_step(here, model)
    one_step(there, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_a_tensor_learning_rate_is_filled_in_place():
    """A captured step reads the tensor at its address."""
    p = torch.nn.Parameter(torch.zeros(3))
    rate = torch.tensor(0.0)
    optimiser = torch.optim.AdamW([p], lr=rate)
    set_lr(optimiser, 0.25)
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate == 0.25


def test_fused_sgd_takes_parameters_that_start_later():
    """The same steps as with plain SGD, for which a missing buffer is no problem."""
    trained = []
    for fused in (True, False):
        early, late = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        optimiser = torch.optim.SGD([early, late], torch.tensor(0.1), 0.9, weight_decay=0.1, fused=fused)
        if fused:
            optimiser.register_step_pre_hook(fill_momentum_buffers)
        for step in range(4):
            for p in (early, late) if step > 1 else (early,):
                p.grad = torch.tensor([1.0, -2.0, 0.5]) * (step + 1)
            optimiser.step()
        trained.append(torch.stack([early, late]))
    assert torch.allclose(*trained)


def test_step_counts_can_be_reset():
    """AdamW with reset counts equals AdamW that starts there."""
    slept, fresh = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    late, new = (torch.optim.AdamW([p], lr=0.1, weight_decay=0.0) for p in (slept, fresh))
    reset_step_counts(late, [slept])  # there is nothing yet
    for _ in range(40):
        slept.grad = torch.zeros(3)
        late.step()
    reset_step_counts(late, [slept, fresh])
    for draw in range(3):
        for p, optimiser in ((slept, late), (fresh, new)):
            p.grad = torch.tensor([1.0, -2.0, 0.5]) * (draw + 1)
            optimiser.step()
    assert torch.allclose(slept, fresh)
    sgd = torch.optim.SGD([slept], 0.1, momentum=0.9)
    sgd.step()
    reset_step_counts(sgd, [slept])


def test_sgd_against_a_literal_version():
    """v = 0.9 v + g + wd p; p = p - lr v; biases and norms do not decay."""
    model = objective()
    optimiser = make_optimiser(model, OptimConfig(name="sgd", weight_decay=0.1))
    decayed = {id(p) for p in optimiser.param_groups[0]["params"]}
    expected = [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(p) for p in expected]
    for _ in range(3):
        one_step(optimiser, model)
        for p, v, live in zip(expected, velocity, model.parameters()):
            v.mul_(0.9).add_(1 + (0.1 * p if id(live) in decayed else 0.0))
            p.sub_(0.5 * v)
    assert 0 < len(decayed) < len(expected)
    assert all(torch.allclose(p, live) for p, live in zip(expected, model.parameters()))


def test_adamw_is_the_default_and_sgd_has_its_own_lr():
    assert isinstance(make_optimiser(objective(), OptimConfig()), torch.optim.AdamW)
    assert OptimConfig(name="sgd").peak_lr(512) == 0.06
    assert OptimConfig(name="sgd", lr=0.1).peak_lr(512) == 0.1


def test_fused_sgd_equals_plain_sgd():
    """The learning rate is a tensor that is filled between steps."""
    plain, fused = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(2))
    both = (torch.optim.SGD([plain], 0.0, 0.9), torch.optim.SGD([fused], torch.tensor(0.0), 0.9, fused=True))
    for rate in (0.5, 0.1, 0.2):
        for optimiser, p in zip(both, (plain, fused)):
            p.grad = torch.ones_like(p) * rate
            set_lr(optimiser, rate)
            optimiser.step()
    assert torch.allclose(plain, fused)


def test_scheduled_weight_decay_equals_adamws():
    """Equal bit by bit at every step; groups without decay and parameters without a gradient are unchanged."""
    model, other = objective(), objective()
    own, filled = (make_optimiser(one, OptimConfig(weight_decay=0.04)) for one in (model, other))
    decay = WeightDecaySchedule(filled, 0.04, 0.4)
    resting = [one.backbone.timm_model.blocks[0].mlp.fc1.weight for one in (model, other)]
    for step in range(4):
        own.param_groups[0]["weight_decay"] = decay.at(step / 4)
        decay.set(0.5, step / 4)
        for optimiser, one, rests in zip((own, filled), (model, other), resting):
            for p in one.parameters():
                p.grad = None if p is rests and step < 2 else torch.full_like(p, 0.1 * step - 0.1)
            set_lr(optimiser, 0.5)
            optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert filled.param_groups[0]["weight_decay"] == 0


def test_weight_decay_follows_half_a_cosine():
    decay = WeightDecaySchedule(make_optimiser(objective(), OptimConfig()), 0.04, 0.4)
    assert [decay.at(t) for t in (0, 0.25, 0.5, 1)] == pytest.approx([0.04, 0.22 - 0.18 * 0.5**0.5, 0.22, 0.4])


def test_an_overflowed_step_does_not_decay():
    """A fused optimiser is still called, with `found_inf` set."""
    model = objective()
    optimiser = make_optimiser(model, OptimConfig(weight_decay=0.5))
    decay = WeightDecaySchedule(optimiser, 0.5, 0.5)
    decay.set(0.5, 0.0)
    for overflow, factor in ((1.0, 1.0), (0.0, 0.75)):
        p = decay.parameters[0]
        p.grad, before = torch.zeros_like(p), p.detach().clone()
        optimiser.found_inf = torch.tensor([overflow])
        decay._apply(optimiser)
        assert torch.equal(p, before * factor)


def test_scheduled_weight_decay_needs_adamw():
    with pytest.raises(UserError, match="final-weight-decay is for AdamW"):
        FitConfig(optim=OptimConfig(name="sgd", final_weight_decay=0.4)).check()
