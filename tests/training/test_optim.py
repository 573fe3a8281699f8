from __future__ import annotations

import torch

from tests.training.test_loop import objective
from vitling.training import OptimConfig
from vitling.training.optim import load_optimiser, make_optimiser, set_lr


def one_step(optimiser, model) -> None:
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    set_lr(optimiser, 0.5)
    optimiser.step()


def test_a_state_that_a_gpu_wrote_goes_on_on_a_cpu():
    """There the learning rate is a tensor, and the optimiser one that can be recorded."""
    model, other = objective(), objective()
    here, there = make_optimiser(model, OptimConfig()), make_optimiser(other, OptimConfig())
    one_step(there, other)
    written = there.state_dict()
    for group in written["param_groups"]:
        group.update(lr=torch.tensor(0.5), fused=True, capturable=True)
    model.load_state_dict(other.state_dict())
    load_optimiser(here, written)
    assert all(group["lr"] == 0.0 and not group["capturable"] and not group["fused"] for group in here.param_groups)
    one_step(here, model)
    one_step(there, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_a_learning_rate_that_is_a_tensor_is_filled():
    """A recording reads it where it lies."""
    p = torch.nn.Parameter(torch.zeros(3))
    rate = torch.tensor(0.0)
    optimiser = torch.optim.AdamW([p], lr=rate)
    set_lr(optimiser, 0.25)
    assert optimiser.param_groups[0]["lr"] is rate
    assert rate == 0.25
