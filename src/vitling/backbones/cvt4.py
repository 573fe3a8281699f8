"""CvT-T of EsViT (`cvt_v4/s1` in its release): CvT in four stages, with attention in unshifted windows.

Only the depthwise convolutions connect neighbouring windows. The paper has a relative position bias; the release cannot
run at 96 px with it, so there is none here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from timm.layers import QuickGELU
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor, nn

from vitling.backbones.cvt import DepthwiseConv
from vitling.backbones.dot_product import DotProductAttention, merge_heads, split_heads
from vitling.backbones.position import Grid
from vitling.backbones.pyramid import Block, Embedding, Pyramid, Stage, make_drop_rates

NORM = partial(nn.LayerNorm, eps=1e-5)


class CvT4(Pyramid):
    """CvT-T, with pooled features that are the mean of the tokens."""

    def __init__(
        self,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        window: int,
        in_chans: int = 3,
        drop_path_rate: float = 0.0,
    ):
        stages, rates = [], make_drop_rates(drop_path_rate, depths)
        for i, (dim_in, dim) in enumerate(zip((in_chans, *dims), dims)):
            convolution = nn.Conv2d(dim_in, dim, 3, 2, padding=1) if i else nn.Conv2d(dim_in, dim, 7, 4, padding=2)
            blocks = [
                Block(dim, WindowedConvAttention(dim, heads[i], window), rate, NORM, activation=QuickGELU)
                for rate in rates[i]
            ]
            stages.append(Stage(Embedding(convolution, NORM), blocks, class_token=False))
        super().__init__(stages, NORM(dims[-1]))
        self.apply(_init)


class WindowedConvAttention(nn.Module):
    """Attention in windows. The map is padded to whole windows before the convolution; a small map is one window."""

    def __init__(self, dim: int, heads: int, window: int):
        super().__init__()
        self.heads, self.window = heads, window
        self.conv = DepthwiseConv(dim, stride=1)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mix = DotProductAttention(dim**-0.5)  # the whole width, not a head's
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        height, width = grid
        side = min(self.window, height, width)
        rows, columns = height + -height % side, width + -width % side
        maps = F.pad(tokens.unflatten(1, grid), (0, 0, 0, columns - width, 0, rows - height))
        projected = self.qkv(self.conv(maps.flatten(1, 2), (rows, columns)))
        windows = window_partition(projected.unflatten(1, (rows, columns)), (side, side)).flatten(1, 2)
        mixed = merge_heads(self.mix(*split_heads(windows, 3, self.heads)))
        maps = window_reverse(mixed.unflatten(1, (side, side)), (side, side), rows, columns)
        return self.proj(maps[:, :height, :width].flatten(1, 2))


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
