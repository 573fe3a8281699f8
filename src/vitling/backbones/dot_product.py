"""Scaled dot-product attention as a module, so that hooks can read its queries and keys, and timm's attention with it.

On GPUs, attention to few keys has kernels of its own.
"""

from __future__ import annotations

import torch.nn.functional as F
from timm.layers import Attention
from timm.models import pvt_v2
from torch import Tensor, nn

from vitling.backbones.features import to_map
from vitling.backbones.position import Grid
from vitling.backbones.short_attention import attend, is_short


class DotProductAttention(nn.Module):
    def __init__(self, scale: float, dropout: float = 0.0):
        super().__init__()
        self.scale, self.dropout = scale, dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend with q, k, v of shape [B, heads, tokens, d]; `bias` broadcasts to the shape of the scores."""
        dropout = self.dropout if self.training else 0.0
        if bias is None and not dropout and is_short(q, k, v):
            return attend(*(x.transpose(1, 2) for x in (q, k, v)), self.scale).transpose(1, 2)
        bias = None if bias is None else bias.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, bias, dropout, scale=self.scale)


def split_heads(projected: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    """Split a tensor [B, N, count * heads * d] into `count` tensors [B, heads, N, d]."""
    batch, tokens = projected.shape[:2]
    return projected.reshape(batch, tokens, count, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(mixed: Tensor) -> Tensor:
    """Merge the heads of a tensor [B, heads, N, d]: return [B, N, heads * d]."""
    return mixed.transpose(1, 2).flatten(2)


class TokenAttention(nn.Module):
    """timm's Attention of ViTs with the same parameters, without a gate and masks."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.qkv, self.q_norm, self.k_norm = attention.qkv, attention.q_norm, attention.k_norm
        self.norm, self.proj, self.proj_drop = attention.norm, attention.proj, attention.proj_drop
        self.num_heads = attention.num_heads
        self.mix = DotProductAttention(attention.scale, attention.attn_drop.p)

    def forward(self, tokens: Tensor, attn_mask: None = None, is_causal: bool = False) -> Tensor:
        """Attend; masks are arguments because timm's blocks pass them, as None and False."""
        if attn_mask is not None or is_causal:
            raise NotImplementedError("attention masks are not supported")
        q, k, v = split_heads(self.qkv(tokens), 3, self.num_heads)
        return self.proj_drop(self.proj(self.norm(merge_heads(self.mix(self.q_norm(q), self.k_norm(k), v)))))


class PyramidAttention(nn.Module):
    """timm's Attention of PVTv2 with the same parameters, the linear variant included."""

    def __init__(self, attention: pvt_v2.Attention):
        super().__init__()
        self.q, self.kv, self.proj, self.proj_drop = attention.q, attention.kv, attention.proj, attention.proj_drop
        self.pool, self.sr, self.norm, self.act = attention.pool, attention.sr, attention.norm, attention.act
        self.num_heads = attention.num_heads
        self.mix = DotProductAttention(attention.scale, attention.attn_drop.p)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        (q,) = split_heads(self.q(tokens), 1, self.num_heads)
        if self.sr is not None and self.norm is not None:
            maps = to_map(tokens, grid)
            maps = self.sr(maps if self.pool is None else self.pool(maps))
            tokens = self.norm(maps.flatten(2).transpose(1, 2))
            tokens = tokens if self.act is None else self.act(tokens)
        k, v = split_heads(self.kv(tokens), 2, self.num_heads)
        return self.proj_drop(self.proj(merge_heads(self.mix(q, k, v))))


def replace_attention(model: nn.Module) -> None:
    """Replace timm's attention of ViTs, unless it has a gate, and of PVTv2 in place."""
    for parent in list(model.modules()):
        attention = getattr(parent, "attn", None)
        if type(attention) is Attention and getattr(attention, "gate", None) is None:
            parent.attn = TokenAttention(attention).train(attention.training)
        elif type(attention) is pvt_v2.Attention:
            parent.attn = PyramidAttention(attention).train(attention.training)
