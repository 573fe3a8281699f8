"""AdamW or SGD with explicit groups, clipping, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitling.objectives.objective import Objective
from vitling.training.config import OptimConfig


def make_optimiser(objective: Objective, config: OptimConfig) -> torch.optim.Optimizer:
    """On GPUs one that can be recorded as a CUDA graph: its learning rate is a tensor there."""
    device = next((p.device for p in objective.parameters() if p.is_cuda), None)
    groups = objective.param_groups(config.weight_decay, config.decay_all)
    lr, fused = torch.zeros((), device=device) if device else 0.0, device is not None or None
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr, config.momentum, fused=fused)
    return torch.optim.AdamW(groups, lr, config.betas, fused=fused, capturable=device is not None)


class WeightDecaySchedule:
    """Weight decay from one number to another by half a cosine. AdamW's own is a number that a recorded step would not
    see change: this one, p := (1 - lr wd) p before the step as AdamW has it, is a product with a tensor that is filled
    between steps. Parameters without a gradient are left alone, as are all in a step that overflowed in fp16."""

    def __init__(self, optimiser: torch.optim.Optimizer, start: float, end: float):
        self.start, self.end = start, end
        group = optimiser.param_groups[0]  # the others do not decay
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
        overflow = getattr(optimiser, "found_inf", None)  # a fused optimiser is told, and does nothing then
        factor = self.factor if overflow is None else torch.where(overflow.squeeze() > 0, 1.0, self.factor)
        torch._foreach_mul_(moved, factor)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def reset_step_counts(optimiser: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Moments of zeros, counted as if they were of so many steps, would make the first steps too large. SGD, and what
    has no state yet, counts nothing."""
    for parameter in parameters:
        if "step" in (state := optimiser.state.get(parameter, {})):
            state["step"].zero_()


def load_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """What belongs to the device and not to the run stays as it was made."""
    own_names = {"lr", "fused", "capturable"}
    made = [{name: group[name] for name in own_names & group.keys()} for group in optimiser.param_groups]
    optimiser.load_state_dict(state)
    for group, own in zip(optimiser.param_groups, made):
        group.update(own)


def clip_gradients(
    parameters: list[nn.Parameter],
    largest: float,
    per: str,
    whole: Callable[[list[nn.Parameter], Tensor], Tensor] = lambda parameters, norms: norms,
) -> Tensor:
    """Clips in place; gives the global norm before clipping. `whole` corrects the norms of gradients that are spread
    over processes."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    norms = whole([p for p in parameters if p.grad is not None], norms)
    total = torch.linalg.vector_norm(norms)
    if largest > 0 and per == "global":
        torch._foreach_mul_(gradients, (largest / (total + 1e-6)).clamp(max=1.0))
    elif largest > 0:
        torch._foreach_mul_(gradients, list((largest / (norms + 1e-6)).clamp(max=1.0).unbind()))
    return total


class Average:
    """Exponential moving average of parameters and floating buffers. Young averages move faster, so that a short run
    is not held back by its random start: decay_t = min(decay, (1 + t) / (10 + t))."""

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
    def applied(self) -> Iterator[None]:
        """Inside, the objective carries the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def keep(self) -> None:
        """The objective carries the averaged weights from now on."""
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
