"""Self-distillation as in DINO: the head, the centring and sharpening of the teacher, and the loss between views.

Head and centre serve views and regions alike: they take vectors [..., D] and rows of logits.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.views.plan import Plan


class DistillationHead(nn.Module):
    """DINO's head: three layers with GELU to a normalised bottleneck, then normalised prototypes, which is DINO's
    weight-normed last layer with its gain fixed at 1. So logits are cosines. `thaw` (0 or 1) scales the prototypes'
    gradient: DINO freezes them in the first epoch."""

    thaw: Tensor

    def __init__(self, dim: int, hidden: int, bottleneck: int, outputs: int):
        super().__init__()
        widths = (dim, hidden, hidden, bottleneck)
        layers = [nn.Linear(*pair) for pair in pairwise(widths)]
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.mlp = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
        self.prototypes = nn.Parameter(nn.Linear(bottleneck, outputs, bias=False).weight.detach())
        self.register_buffer("thaw", torch.ones(()), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        return F.linear(self.units(vectors), self.directions())

    def units(self, vectors: Tensor) -> Tensor:
        """Return the unit vectors that are compared with the prototypes."""
        return F.normalize(self.mlp(vectors), dim=-1)

    def directions(self) -> Tensor:
        """Return the prototypes, normalised to length 1."""
        return F.normalize(_ScaledGradient.apply(self.prototypes, self.thaw), dim=1)


class _ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return gradients[0] * factor, None


class Centre(nn.Module):
    """The moving average of the teacher's logits over all processes and passes (DINO, Eq. 4). It keeps one output from
    dominating, while a low temperature keeps the outputs from becoming uniform. A momentum of 1 disables it."""

    mean: Tensor
    answered: Tensor  # moving average of the targets
    total: Tensor  # sum of this step's logits
    count: Tensor  # number of logits in `total`
    chosen: Tensor  # sum of this step's noted targets
    noted: Tensor  # number of targets in `chosen`

    def __init__(self, outputs: int, momentum: float):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("answered", torch.zeros(outputs))
        self.register_buffer("mean", torch.zeros(outputs))
        for name, width in (("total", outputs), ("count", 1), ("chosen", outputs), ("noted", 1)):
            self.register_buffer(name, torch.zeros(width), persistent=False)

    def begin(self) -> None:
        """Reset the sums. Call this before a step."""
        for sums in self._sums():
            sums.zero_()

    def _sums(self) -> tuple[Tensor, ...]:
        """Return the sums of this step."""
        return self.total, self.count, self.chosen, self.noted

    @torch.no_grad()
    def targets(self, logits: Tensor, temperature: Tensor | float) -> Tensor:
        """Return the student's targets: softmax((logits - centre) / temperature)."""
        return ((logits.float() - self.mean) / temperature).softmax(-1)

    def health(self) -> float:
        """Return the entropy of the recent targets' mean, divided by ln K: 0 if all images have the same target, 1 if
        all outputs are used equally often."""
        shares = self.answered / self.answered.sum().clamp(min=1e-6)
        return float(torch.special.entr(shares).sum()) / math.log(len(shares)) if self.answered.any() else 1.0

    @torch.no_grad()
    def add(self, logits: Tensor) -> None:
        """Add the teacher's logits of a pass, by which the centre moves after the step."""
        rows = logits.float().flatten(0, -2)
        self.add_sum(rows.sum(0), len(rows))

    @torch.no_grad()
    def add_sum(self, total: Tensor, count: int) -> None:
        """Add logits that were summed elsewhere."""
        self.total.add_(total)
        self.count.add_(count)

    @torch.no_grad()
    def note(self, targets: Tensor) -> None:
        """Add the targets of a pass, for `health`."""
        rows = targets.flatten(0, -2)
        self.chosen.add_(rows.sum(0))
        self.noted.add_(len(rows))

    @torch.no_grad()
    def move(self) -> None:
        """Move the centre. Call this after a step."""
        sums = torch.cat(self._sums())
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        total, count, chosen, noted = sums.split([len(part) for part in self._sums()])
        self.mean.lerp_(total / count, 1 - self.momentum)
        self.answered.lerp_(chosen / noted, 0.1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load older checkpoints too, which do not have `answered`."""
        state_dict.setdefault(f"{prefix}answered", self.answered)
        super()._load_from_state_dict(state_dict, prefix, *others)


def view_loss(student: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of the student's views [V, B, K] with the targets [G, B, K] of the first G views, except
    those of the same view, averaged over images and over the G (V - 1) pairs.

    Summing over views first saves products: sum_t sum_(s != t) p_t log q_s = (sum_t p_t) (sum_s log q_s) -
    sum_t p_t log q_t.
    """
    log_q = (student.float() / temperature).log_softmax(-1)
    all_pairs = (targets.sum(0) * log_q.sum(0)).sum()
    same_view = (targets * log_q[: len(targets)]).sum()
    pairs = len(targets) * (len(student) - 1)
    return (same_view - all_pairs) / (pairs * student.shape[1])


def count_global_groups(plan: Plan, views: int) -> int:
    """Return how many groups, from the first on, contain the global views."""
    counted = list(accumulate(group.count for group in plan.groups))
    if views not in counted or len({group.size for group in plan.groups[: counted.index(views) + 1]}) > 1:
        raise ValueError(f"the plan must begin with groups that have {views} global views of one size")
    return counted.index(views) + 1
