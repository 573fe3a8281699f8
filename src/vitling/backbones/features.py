"""The output of a backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vitling.backbones.position import Grid

GridNorm = Literal["before", "after", "published"]
Stages = bool | Literal["blocks"]  # return no intermediate maps, one per stage, or one per block


@dataclass
class Features:
    """The features of a batch; `stages` and `attention` on request."""

    pooled: Tensor  # [B, D], the input of a linear head
    grid: Tensor  # [B, D, h, w], the last map after the final norm, without class and register tokens
    stages: list[Tensor] | None = None  # maps before the final norm, one per stage (in a plain ViT per block) or block
    attention: Tensor | None = None  # of the last block, [B, heads, queries, keys], class tokens first
    raw_grid: Tensor | None = None  # `grid` before the final norm; None if there is no such norm
    published: Literal["before", "after"] = "after"  # the grid, relative to the norm, that DRLoc's release uses

    def select_grid(self, norm: GridNorm) -> Tensor:
        """Return the grid before or after the final norm, or the one that DRLoc's release uses."""
        where = self.published if norm == "published" else norm
        return self.grid if where == "after" or self.raw_grid is None else self.raw_grid


def to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """Convert tokens [B, prefix + h*w, D] to maps [B, D, h, w], without the class and register tokens of the prefix."""
    height, width = grid
    spatial = tokens[:, tokens.shape[1] - height * width :]
    return spatial.transpose(1, 2).reshape(tokens.shape[0], -1, height, width)
