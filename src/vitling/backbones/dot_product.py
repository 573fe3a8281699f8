"""Scaled dot-product attention as a module, so that hooks can read its queries and keys."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.short_attention import attend, is_short


class DotProductAttention(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend with q, k, v of shape [B, heads, tokens, d]; `bias` broadcasts to the shape of the scores."""
        if bias is None and is_short(q, k, v):
            return attend(*(x.transpose(1, 2) for x in (q, k, v)), self.scale).transpose(1, 2)
        bias = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, bias, scale=self.scale)


def split_heads(projected: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    """Split a tensor [B, N, count * heads * d] into `count` tensors [B, heads, N, d]."""
    batch, tokens = projected.shape[:2]
    return projected.reshape(batch, tokens, count, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(mixed: Tensor) -> Tensor:
    """Merge the heads of a tensor [B, heads, N, d]: return [B, N, heads * d]."""
    return mixed.transpose(1, 2).flatten(2)
