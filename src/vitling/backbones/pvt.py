"""PVT (Wang et al., ICCV 2021): attention to keys that a strided convolution made few; positions in every stage.

EsViT's Table 4 has a PvT of 24 M and no code of it. PVT-Small has 23.97 M parameters without a head, as the others are
counted there; its depths are 3-4-6-3, where the text says 2-2-6-2 of all, but with those it would have 19.3 M.
"""

from __future__ import annotations

from collections.abc import Sequence

from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.features import to_map
from vitling.backbones.mix import Mix, from_heads, to_heads
from vitling.backbones.position import Grid
from vitling.backbones.pyramid import Block, Embedding, Pyramid, Stage, drop_paths, padded

EPSILON = 1e-6


class PVT(Pyramid):
    """`reductions`: the sides of what one key of each stage is made of. The last stage has the class token."""

    def __init__(
        self,
        img_size: int,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        mlp_ratios: Sequence[int],
        reductions: Sequence[int],
        in_chans: int = 3,
        drop_path_rate: float = 0.0,
    ):
        stages, side = [], img_size // 4
        rates = drop_paths(drop_path_rate, depths)
        for i, (dim_in, dim) in enumerate(zip((in_chans, *dims), dims)):
            patch = 2 if i else 4
            side = -(-side // 2) if i else side
            blocks = [
                Block(dim, ReducedAttention(dim, heads[i], reductions[i]), rate, EPSILON, mlp_ratios[i])
                for rate in rates[i]
            ]
            embed = Embedding(nn.Conv2d(dim_in, dim, patch, patch), eps=1e-5)
            stages.append(Stage(embed, blocks, class_token=i == len(dims) - 1, built_for=(side, side)))
        super().__init__(stages, nn.LayerNorm(dims[-1], EPSILON))
        self.apply(init_weights_vit_timm)


class ReducedAttention(nn.Module):
    """Keys and values from the map after a convolution of `reduction` x `reduction` patches; no class token there."""

    def __init__(self, dim: int, heads: int, reduction: int):
        super().__init__()
        self.heads, self.reduction = heads, reduction
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.sr = nn.Conv2d(dim, dim, reduction, reduction) if reduction > 1 else None
        self.norm = nn.LayerNorm(dim, 1e-5) if reduction > 1 else None
        self.mix = Mix((dim // heads) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        (q,) = to_heads(self.q(tokens), 1, self.heads)
        if self.sr is not None and self.norm is not None:
            maps = self.sr(padded(to_map(tokens, grid), self.reduction))
            tokens = self.norm(maps.flatten(2).transpose(1, 2))
        k, v = to_heads(self.kv(tokens), 2, self.heads)
        return self.proj(from_heads(self.mix(q, k, v)))
