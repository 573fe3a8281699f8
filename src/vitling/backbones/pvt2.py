"""PVTv2's attention with its product as a module, which has a kernel of its own on GPUs."""

from __future__ import annotations

from timm.models.pvt_v2 import Attention
from torch import Tensor, nn

from vitling.backbones.dot_product import DotProductAttention, merge_heads, split_heads
from vitling.backbones.features import to_map
from vitling.backbones.position import Grid


class PyramidAttention(nn.Module):
    """timm's Attention of PVTv2 with the same parameters, without dropout and without the linear variant."""

    def __init__(self, attention: Attention):
        super().__init__()
        self.q, self.kv, self.proj = attention.q, attention.kv, attention.proj
        self.sr, self.norm = attention.sr, attention.norm
        self.num_heads = attention.num_heads
        self.mix = DotProductAttention(attention.scale)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        (q,) = split_heads(self.q(tokens), 1, self.num_heads)
        if self.sr is not None and self.norm is not None:
            tokens = self.norm(self.sr(to_map(tokens, grid)).flatten(2).transpose(1, 2))
        k, v = split_heads(self.kv(tokens), 2, self.num_heads)
        return self.proj(merge_heads(self.mix(q, k, v)))


def replace_pyramid_attention(model: nn.Module) -> None:
    """Replace PVTv2's attention in place, except its linear variant and attention with dropout."""
    for parent in list(model.modules()):
        attention = getattr(parent, "attn", None)
        if isinstance(attention, Attention) and attention.pool is None and not _has_dropout(attention):
            parent.attn = PyramidAttention(attention)


def _has_dropout(attention: Attention) -> bool:
    return bool(attention.attn_drop.p or attention.proj_drop.p)
