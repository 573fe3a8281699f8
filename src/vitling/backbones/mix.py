"""Attention proper, as a module: so that its queries and keys can be looked at without a second pass to get them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Mix(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """All [B, heads, tokens, d]; `bias` is added to the scores and has their shape, or broadcasts to it."""
        bias = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, bias, scale=self.scale)


def to_heads(projected: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[B, N, parts * heads * d] to `parts` tensors [B, heads, N, d]."""
    batch, count = projected.shape[:2]
    return projected.reshape(batch, count, parts, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def from_heads(mixed: Tensor) -> Tensor:
    """[B, heads, N, d] to [B, N, heads * d]."""
    return mixed.transpose(1, 2).flatten(2)
