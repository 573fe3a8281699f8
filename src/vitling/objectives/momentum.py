"""A second network that no gradient reaches: it follows the first as a moving average of its weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.depth import StochasticDepth
from vitling.backbones.features import Features
from vitling.objectives.progress import Progress
from vitling.views.renderer import Views

Network = TypeVar("Network", bound=nn.Module)


class MomentumCopy(nn.Module):
    """Of a backbone and the head behind it: MoCo's key encoder, BYOL's target, DINO's teacher. `regions` is a second
    head, for the regions of a view, where there is one.

    The parameters move by `follow` alone. Buffers do not follow: as in the code of all these methods, the copy is in
    training mode where the networks are, so that batch norm normalises by its own batches and keeps its own running
    statistics. It neither drops paths nor features, as DINO's teacher; MoCo v3 and BYOL have none to drop.
    """

    def __init__(self, backbone: Backbone, head: nn.Module, regions: nn.Module | None = None):
        super().__init__()
        self.backbone, self.head = _freeze_copy(backbone), _freeze_copy(head)
        self.regions = None if regions is None else _freeze_copy(regions)
        # Listed once: asking every module takes longer than moving the weights.
        self.slow: list[Tensor] = list(self.parameters())
        self.fast: list[Tensor] = [*backbone.parameters(), *head.parameters()]
        self.fast += [] if regions is None else regions.parameters()

    @torch.no_grad()
    def forward(self, pixels: Tensor, views: int = 1) -> Tensor:
        return apply_by_view(self.head, self.backbone(pixels).pooled, views)

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Features:
        return self.backbone(pixels)

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        torch._foreach_lerp_(self.slow, self.fast, 1 - momentum)


def _freeze_copy(network: Network) -> Network:
    made = copy.deepcopy(network).requires_grad_(False)
    for parent in list(made.modules()):
        for name, child in parent.named_children():
            if isinstance(child, StochasticDepth | DropPath):
                setattr(parent, name, nn.Identity())
            elif isinstance(child, nn.Dropout):
                child.p = 0.0  # not left out: attention asks it for its rate
    return made


def join_pixels(views: list[Views]) -> Tensor:
    """Of all groups, view by view."""
    return views[0].pixels if len(views) == 1 else torch.cat([view.pixels for view in views])


def apply_by_view(head: Callable[[Tensor], Tensor], rows: Tensor, views: int) -> Tensor:
    """The head's answers, one view after the other: batch norm in it then has the statistics of each view, as these
    methods have it. Without batch norm one call would do."""
    return torch.cat([head(view) for view in rows.chunk(views)]) if views > 1 else head(rows)


def cosine_momentum(start: float, progress: Progress) -> float:
    """A momentum that rises to 1 by half a cosine: 1 - (1 - start) (cos(pi t) + 1) / 2 (BYOL, MoCo v3, DINO)."""
    return 1 - (1 - start) * (math.cos(math.pi * progress.fraction) + 1) / 2
