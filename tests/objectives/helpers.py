"""Regions of some views, and the arguments of the loss between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vitling.objectives.regions import match_by_features


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_regions(images: int = 3, dim: int = 6) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Draw two global views of 3 x 4 regions, three local ones of 2 x 2 and one of 1 x 3; and the teacher's."""
    shapes = [(2, 12), (3, 4), (1, 3)]
    seen = [random(images, *shape, dim, seed=i) for i, shape in enumerate(shapes)]
    return seen, random(images, 2, 12, dim, seed=9)


def inputs(images: int = 5, k: int = 20) -> dict:
    seen, taught = draw_regions(images)
    return {
        "student": F.normalize(random(images, 39, 8), dim=-1).requires_grad_(),
        "prototypes": F.normalize(random(k, 8, seed=1), dim=1).requires_grad_(),
        "temperature": 0.1,
        "teacher": F.normalize(random(images, 24, 8, seed=2), dim=-1),
        "teacher_prototypes": F.normalize(random(k, 8, seed=3), dim=1),
        "centre": 0.1 * random(k, seed=4),
        "teacher_temperature": torch.tensor(0.05),
        "matching": match_by_features(seen, taught),
    }


def gradients(loss, arguments):
    return torch.autograd.grad(loss, (arguments["student"], arguments["prototypes"]))
