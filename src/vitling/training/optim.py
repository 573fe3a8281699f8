"""AdamW, SGD or Muon with explicit parameter groups, gradient clipping, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from vitling.objectives.objective import Objective
from vitling.training.config import OptimConfig
from vitling.training.muon import Muon, split_groups

EPS = 1e-6  # added to a norm before dividing by it, as torch.nn.utils.clip_grad_norm_ does


def make_optimiser(objective: Objective, config: OptimConfig) -> torch.optim.Optimizer:
    """Make the optimiser. On GPUs its learning rate is a tensor, so that its step can be captured as a CUDA graph."""
    device = next((p.device for p in objective.parameters() if p.is_cuda), None)
    groups = objective.param_groups(config.weight_decay, config.decay_all)
    lr, fused = torch.zeros((), device=device) if device else 0.0, device is not None or None
    if config.name == "sgd":
        sgd = torch.optim.SGD(groups, lr, config.momentum, fused=fused)
        if fused and config.momentum:
            sgd.register_step_pre_hook(fill_momentum_buffers)
        return sgd
    options: dict[str, Any] = {"fused": fused, "capturable": device is not None}
    if config.name == "muon":
        return Muon(split_groups(groups, objective), lr, config.betas, **options)
    return torch.optim.AdamW(groups, lr, config.betas, **options)


def fill_momentum_buffers(optimiser: torch.optim.Optimizer, *_: Any) -> None:
    """Start missing momentum buffers at 0, which changes no step. Without it torch's fused SGD raises a TypeError when
    some parameters get their first gradient later than others, as in a later phase."""
    for parameter in (p for group in optimiser.param_groups for p in group["params"] if p.grad is not None):
        if optimiser.state[parameter].get("momentum_buffer") is None:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class WeightDecaySchedule:
    """AdamW's weight decay, moved from `start` to `end` by half a cosine.

    AdamW's own decay is a Python number, which a captured step would freeze. This one multiplies the parameters by a
    tensor, 1 - lr * decay, before each step as AdamW does, and the tensor is filled between steps. Parameters without a
    gradient are left alone, and so are all parameters in a step that overflowed in fp16.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, start: float, end: float):
        self.start, self.end = start, end
        group = optimiser.param_groups[0]  # the other group does not decay
        self.parameters, group["weight_decay"] = group["params"], 0.0
        self.factor = torch.ones((), device=self.parameters[0].device)
        optimiser.register_step_pre_hook(self._apply)

    def set(self, lr: float, fraction: float) -> None:
        self.factor.fill_(1 - lr * self.at(fraction))

    def at(self, fraction: float) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * fraction)) / 2

    @torch.no_grad()
    def _apply(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        moved = [p for p in self.parameters if p.grad is not None]
        overflow = getattr(optimiser, "found_inf", None)  # set on fused optimisers, which then skip the step themselves
        factor = self.factor if overflow is None else torch.where(overflow.squeeze() > 0, 1.0, self.factor)
        torch._foreach_mul_(moved, factor)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def reset_step_counts(optimiser: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Restart AdamW's bias correction for parameters whose gradients were zero until now: their moments are zero too,
    and counted as moments of many steps they would make the next steps too large. SGD has no such count."""
    for parameter in parameters:
        if "step" in (state := optimiser.state.get(parameter, {})):
            state["step"].zero_()


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state, but keep the settings that depend on the device or the network, not on the run."""
    own_names = {"lr", "fused", "capturable", "matrices"}
    made = [{name: group[name] for name in own_names & group.keys()} for group in optimiser.param_groups]
    optimiser.load_state_dict(state)
    for group, own in zip(optimiser.param_groups, made):
        group.update(own)


def clip_gradients(parameters: list[nn.Parameter], max_norm: float, per: str) -> Tensor:
    """Clip gradients in place and return their global norm before clipping."""
    trained = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in trained if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    total = torch.linalg.vector_norm(norms)
    if max_norm > 0 and per == "global":
        clip_grads_with_norm_(trained, max_norm, total)
    elif max_norm > 0:
        torch._foreach_mul_(gradients, list((max_norm / (norms + EPS)).clamp(max=1.0).unbind()))
    return total


class EMA:
    """Exponential moving average of parameters and floating-point buffers. Its decay starts low, so that a short run
    is not held back by its random initialisation: decay_t = min(decay, (1 + t) / (10 + t))."""

    def __init__(self, objective: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self.live = {k: v for k, v in objective.state_dict(keep_vars=True).items() if v.is_floating_point()}
        self.shadow = {k: v.detach().clone() for k, v in self.live.items()}

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        live = [v.detach() for v in self.live.values()]
        torch._foreach_lerp_(list(self.shadow.values()), live, 1 - decay)

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Give the objective the averaged weights for the duration of the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def copy_to_live(self) -> None:
        """Give the objective the averaged weights for good."""
        for name, value in self.live.items():
            value.copy_(self.shadow[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self.live.items():
            held = value.detach().clone()
            value.copy_(self.shadow[name])
            self.shadow[name].copy_(held)

    def state_dict(self) -> dict:
        return {"updates": self.updates, "shadow": self.shadow}

    def load_state_dict(self, state: dict) -> None:
        self.updates = state["updates"]
        for name, value in state["shadow"].items():
            self.shadow[name].copy_(value)
