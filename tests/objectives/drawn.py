"""Views of noise for any plan, as a batch of its own."""

from __future__ import annotations

import torch

from vitling.objectives import Batch, Objective
from vitling.training import Progress
from vitling.views import Views

START = Progress(0, 100, 10)


def noise(objective: Objective, images: int, seed: int = 0) -> list[Views]:
    random = torch.Generator().manual_seed(seed)
    return [
        Views(torch.randn(group.count * images, 3, group.size, group.size, generator=random), group.count)
        for group in objective.plan.groups
    ]


def batch_of(images: int, first: int = 0) -> Batch:
    return Batch(torch.arange(first, first + images), None)


def step(objective: Objective, optimiser: torch.optim.Optimizer, seed: int, progress: Progress = START) -> float:
    """As the loop takes it: four images."""
    objective.before_step(progress)
    optimiser.zero_grad()
    loss = objective.total(objective(noise(objective, 4, seed), batch_of(4, 4 * seed), progress), progress)
    loss.backward()
    optimiser.step()
    objective.after_step(progress)
    return loss.item()
