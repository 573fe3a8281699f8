"""What a backbone makes of a batch of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Stages = bool | Literal["blocks"]  # one map a stage, or one a block, where they are asked for


@dataclass
class Features:
    """`pooled` [B, D] is what a linear head sees. `grid` [B, D, h, w] is the last map after the final norm,
    without class and register tokens. `stages`, on request: one map a stage (a block in a plain ViT), or one a block,
    before the final norm. `attention`, on request: the last block's, [B, heads, queries, keys], class tokens
    first where there are any; for Swin that of its one window, padding included.
    """

    pooled: Tensor
    grid: Tensor
    stages: list[Tensor] | None = None
    attention: Tensor | None = None
