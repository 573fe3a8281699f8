"""The momentum encoder: a second network without gradients, whose weights are a moving average of the first's."""

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
    """A copy of a backbone and its head: MoCo's key encoder, BYOL's target, DINO's teacher. `regions` is an optional
    second head, for the regions of a view.

    Only `follow` moves the parameters. Buffers do not follow: as in the code of all these methods, the copy is in
    training mode when the networks are, so that batch norm uses its own batches and its own running statistics. It has
    no stochastic depth and no dropout, like DINO's teacher; MoCo v3 and BYOL use neither.
    """

    def __init__(self, backbone: Backbone, head: nn.Module, regions: nn.Module | None = None):
        super().__init__()
        self.backbone, self.head = _freeze_copy(backbone), _freeze_copy(head)
        self.regions = None if regions is None else _freeze_copy(regions)
        # Listed once: visiting every module takes longer than moving the weights.
        self.slow: list[Tensor] = list(self.parameters())
        self.fast: list[Tensor] = [*backbone.parameters(), *head.parameters()]
        self.fast += [] if regions is None else regions.parameters()

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Features:
        return self.backbone(pixels)

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move the weights: slow = momentum * slow + (1 - momentum) * fast."""
        torch._foreach_lerp_(self.slow, self.fast, 1 - momentum)


def _freeze_copy(network: Network) -> Network:
    frozen = copy.deepcopy(network).requires_grad_(False)
    for parent in list(frozen.modules()):
        for name, child in parent.named_children():
            if isinstance(child, StochasticDepth | DropPath):
                setattr(parent, name, nn.Identity())
            elif isinstance(child, nn.Dropout):
                child.p = 0.0  # not removed: attention reads its rate
    return frozen


def join_pixels(views: list[Views]) -> Tensor:
    """Concatenate the pixels of all groups, view by view."""
    return views[0].pixels if len(views) == 1 else torch.cat([view.pixels for view in views])


def apply_by_view(head: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply the head to the first view and then to the second, so that its batch norm uses the statistics of each, as
    in the code of these methods. Without batch norm, one call would do the same."""
    return torch.cat([head(view) for view in rows.chunk(2)])


def cosine_momentum(start: float, progress: Progress) -> float:
    """Return a momentum that rises from `start` to 1: 1 - (1 - start) (cos(pi t) + 1) / 2 (BYOL, MoCo v3, DINO)."""
    return 1 - (1 - start) * (math.cos(math.pi * progress.fraction) + 1) / 2
