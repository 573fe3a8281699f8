"""What a backbone makes of a batch of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vitling.backbones.position import Grid

GridNorm = Literal["before", "after", "published"]
Stages = bool | Literal["blocks"]  # one map a stage, or one a block, where they are asked for


@dataclass
class Features:
    """`pooled` [B, D] is what a linear head sees. `grid` [B, D, h, w] is the last map after the final norm,
    without class and register tokens. `stages`, on request: one map a stage (a block in a plain ViT), or one a block,
    before the final norm. `attention`, on request: the last block's, [B, heads, queries, keys], class tokens
    first where there are any; for Swin that of its one window, padding included. `raw_grid` is `grid` before the
    final norm, None where there is no such norm; `published` says which of the two DRLoc's release takes.
    """

    pooled: Tensor
    grid: Tensor
    stages: list[Tensor] | None = None
    attention: Tensor | None = None
    raw_grid: Tensor | None = None
    published: Literal["before", "after"] = "after"

    def select_grid(self, norm: GridNorm) -> Tensor:
        """The grid before or after the final norm, or the one of the two that DRLoc's release takes."""
        where = self.published if norm == "published" else norm
        return self.grid if where == "after" or self.raw_grid is None else self.raw_grid


def to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """[B, prefix + h*w, D] to [B, D, h, w]: class and register tokens, which come first, are left out."""
    height, width = grid
    spatial = tokens[:, tokens.shape[1] - height * width :]
    return spatial.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)
