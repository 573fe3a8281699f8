"""What the heads of the last block look at from one place of an image: EsViT, C.8, Fig. 10-12."""

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

MASS = 0.6
ALIKE = 0.9
Query = Literal["object", "background"] | Grid


@dataclass(frozen=True)
class Heads:
    """Of one image, ranked by entropy, the greatest first. `maps` [heads, h, w] sum to 1: attention to class tokens
    and padding is left out, and `elsewhere` [heads] says how much that was."""

    query: Grid  # row and column
    order: Tensor  # [heads] numbers of the heads in the network
    maps: Tensor
    entropy: Tensor  # [heads] in bits
    elsewhere: Tensor

    def masks(self, mass: float = MASS) -> Tensor:
        """[heads, h, w] bool: the fewest places that together have `mass`."""
        flat = self.maps.flatten(1)
        ranked = flat.sort(dim=1, descending=True)
        before = ranked.values.cumsum(dim=1) - ranked.values
        kept = torch.zeros_like(flat, dtype=torch.bool).scatter(1, ranked.indices, before < mass)
        return kept.view_as(self.maps)

    def redundant(self, alike: float = ALIKE) -> Tensor:
        """[heads] bool: a head whose map correlates by more than `alike` with that of an earlier head of this order,
        itself not redundant. (The paper speaks of redundant patterns, and does not say what they are.)"""
        flat = self.maps.flatten(1)
        centred = F.normalize(flat - flat.mean(dim=1, keepdim=True), dim=1)
        close = centred @ centred.T > alike
        redundant = torch.zeros(len(flat), dtype=torch.bool)
        for head in range(1, len(flat)):
            redundant[head] = bool((close[head, :head].cpu() & ~redundant[:head]).any())
        return redundant


def rank_heads(backbone: Backbone, features: Features, query: Query) -> Heads:
    """For the first image of the batch; `features` were asked for with `attention=True`."""
    if features.attention is None:
        raise ValueError("features without attention")
    grid = (features.grid.shape[-2], features.grid.shape[-1])
    place = _check(query, grid) if isinstance(query, tuple) else _find(query, features)
    seen = select_query_attention(backbone.timm_model, features.attention, grid, place)[0]
    share = seen.sum(dim=(1, 2))
    maps = seen / share[:, None, None]
    entropy = -torch.xlogy(maps, maps).sum(dim=(1, 2)) / math.log(2)
    order = entropy.argsort(descending=True, stable=True)
    return Heads(place, order, maps[order], entropy[order], (1 - share)[order])


def _check(query: Grid, grid: Grid) -> Grid:
    if not all(0 <= place < side for place, side in zip(query, grid)):
        raise UserError(f"Row {query[0]}, column {query[1]}: this network sees {grid[0]} rows of {grid[1]} (from 0).")
    return query


def _find(which: str, features: Features) -> Grid:
    """The region most like the image as a whole is on its object, as far as the network knows; the least is not."""
    similar = F.cosine_similarity(features.grid[0].float().flatten(1), features.pooled[0].float()[:, None], dim=0)
    place = int(similar.argmax() if which == "object" else similar.argmin())
    return divmod(place, features.grid.shape[-1])
