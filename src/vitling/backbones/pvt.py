"""PVT (Wang et al., ICCV 2021): a strided convolution reduces the keys; every stage has position embeddings.

EsViT's Table 4 lists a PvT of 24 M parameters without code. PVT-Small has 23.97 M without a head, which is how the
table counts. Its depths are 3-4-6-3; with the 2-2-6-2 that the text gives for all networks it would have 19.3 M.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.dot_product import DotProductAttention, merge_heads, split_heads
from vitling.backbones.features import to_map
from vitling.backbones.position import Grid
from vitling.backbones.pyramid import Block, Embedding, Pyramid, Stage, make_drop_rates, pad_to_multiple

NORM = partial(nn.LayerNorm, eps=1e-6)


class PVT(Pyramid):
    """PVT. `reductions`: spatial-reduction ratio of the keys, per stage. The last stage has a class token."""

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
        rates = make_drop_rates(drop_path_rate, depths)
        for i, (dim_in, dim) in enumerate(zip((in_chans, *dims), dims)):
            patch = 2 if i else 4
            side = -(-side // 2) if i else side
            blocks = [
                Block(dim, ReducedAttention(dim, heads[i], reductions[i]), rate, NORM, mlp_ratios[i])
                for rate in rates[i]
            ]
            embed = Embedding(nn.Conv2d(dim_in, dim, patch, patch))
            stages.append(Stage(embed, blocks, class_token=i == len(dims) - 1, built_for=(side, side)))
        super().__init__(stages, NORM(dims[-1]))
        self.apply(init_weights_vit_timm)


class ReducedAttention(nn.Module):
    """Attention with keys and values from `reduction` x `reduction` patches of the map, without the class token."""

    def __init__(self, dim: int, heads: int, reduction: int):
        super().__init__()
        self.heads, self.reduction = heads, reduction
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.sr = nn.Conv2d(dim, dim, reduction, reduction) if reduction > 1 else None
        self.norm = nn.LayerNorm(dim, 1e-5) if reduction > 1 else None
        self.mix = DotProductAttention((dim // heads) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        (q,) = split_heads(self.q(tokens), 1, self.heads)
        if self.sr is not None and self.norm is not None:
            maps = self.sr(pad_to_multiple(to_map(tokens, grid), self.reduction))
            tokens = self.norm(maps.flatten(2).transpose(1, 2))
        k, v = split_heads(self.kv(tokens), 2, self.heads)
        return self.proj(merge_heads(self.mix(q, k, v)))
