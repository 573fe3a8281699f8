"""Attention of the last block's heads, seen from one region of an image (EsViT, C.8, Fig. 10-12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.attention import select_query_attention
from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.backbones.position import Grid
from vitling.errors import UserError

MASS = 0.6  # fraction of the attention that a mask covers (EsViT, Fig. 10)
REDUNDANT_ABOVE = 0.9  # correlation of two maps; our choice, the paper gives no measure
Query = Literal["object", "background"] | Grid


@dataclass(frozen=True)
class RankedHeads:
    """Attention heads on one image, the highest entropy first.

    `maps` [heads, h, w] sum to 1: attention to class tokens and padding is left out; `elsewhere` is that fraction.
    """

    query: Grid  # row and column
    order: Tensor  # [heads], indices of the heads in the network
    maps: Tensor
    entropy: Tensor  # [heads], in bits
    elsewhere: Tensor  # [heads]

    def masks(self, mass: float = MASS) -> Tensor:
        """Mark the fewest regions that together have `mass`; bool [heads, h, w]."""
        flat = self.maps.flatten(1)
        ranked = flat.sort(dim=1, descending=True)
        before = ranked.values.cumsum(dim=1) - ranked.values
        kept = torch.zeros_like(flat, dtype=torch.bool).scatter(1, ranked.indices, before < mass)
        return kept.view_as(self.maps)

    def redundant(self, threshold: float = REDUNDANT_ABOVE) -> Tensor:
        """Mark heads whose map correlates above `threshold` with an earlier non-redundant head's; bool [heads].

        The paper speaks of redundant patterns without defining them.
        """
        flat = self.maps.flatten(1)
        centred = F.normalize(flat - flat.mean(dim=1, keepdim=True), dim=1)
        close = centred @ centred.T > threshold
        redundant = torch.zeros(len(flat), dtype=torch.bool)
        for head in range(1, len(flat)):
            redundant[head] = bool((close[head, :head].cpu() & ~redundant[:head]).any())
        return redundant


def rank_heads(backbone: Backbone, features: Features, query: Query) -> RankedHeads:
    """Rank the heads on the first image of the batch; `features` need `attention=True`."""
    if features.attention is None:
        raise ValueError("features without attention")
    grid = (features.grid.shape[-2], features.grid.shape[-1])
    region = _check_region(query, grid) if isinstance(query, tuple) else _find_region(query, features)
    seen = select_query_attention(backbone.timm_model, features.attention, grid, region)[0]
    share = seen.sum(dim=(1, 2))
    maps = seen / share[:, None, None]
    entropy = -torch.xlogy(maps, maps).sum(dim=(1, 2)) / math.log(2)
    if not entropy.isfinite().all():
        raise UserError("The attention is not finite; the weights may be damaged.")
    order = entropy.argsort(descending=True, stable=True)
    return RankedHeads(region, order, maps[order], entropy[order], (1 - share)[order])


def _check_region(query: Grid, grid: Grid) -> Grid:
    if not all(0 <= index < side for index, side in zip(query, grid)):
        raise UserError(
            f"--query {query[0]},{query[1]} is outside the grid of {grid[0]} x {grid[1]} regions (counted from 0)."
        )
    return query


def _find_region(which: str, features: Features) -> Grid:
    """Find the region most similar to the pooled feature (the object), or the least similar (the background)."""
    similar = F.cosine_similarity(features.grid[0].float().flatten(1), features.pooled[0].float()[:, None], dim=0)
    index = int(similar.argmax() if which == "object" else similar.argmin())
    return divmod(index, features.grid.shape[-1])
