"""The common structure of the 4-stage networks of EsViT's Table 4: stages of blocks, each halving the map.

They differ in their attention: vil.py, cvt4.py, pvt.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from vitling.backbones.features import Features, Stages, to_map
from vitling.backbones.position import Grid, resize_positions


class Pyramid(nn.Module):
    """Stages and a final norm. The pooled features are the class token if the last stage has one, else the mean."""

    pretrained_cfg: ClassVar = {"classifier": "head", "first_conv": None}  # same attribute as on timm models

    def __init__(self, stages: list[Stage], norm: nn.LayerNorm):
        super().__init__()
        self.num_features = norm.normalized_shape[0]
        self.stages = nn.ModuleList(stages)
        self.norm = norm

    @property
    def cls_token(self) -> Tensor | None:
        """The last stage's class token, as in timm's networks; None if the pooled features are a mean."""
        return cast(Stage, self.stages[-1]).cls_token

    def has_class_token(self, width: int) -> bool:
        """Return whether the stage of this width, which no other stage has, puts a class token before its map."""
        tokens = [cast(Stage, stage).cls_token for stage in self.stages]
        return any(token is not None and token.shape[-1] == width for token in tokens)

    def no_weight_decay(self) -> set[str]:
        kinds = ("cls_token", "pos_embed", "position_bias_table", "position_bias")
        return {name for name, _ in self.named_parameters() if name.endswith(kinds)}

    def forward(self, x: Tensor, stages: Stages = False) -> Features:
        maps, outputs = x, []
        for stage in self.stages:
            blocks, grid = stage(maps)
            maps = to_map(blocks[-1], grid)
            outputs += [to_map(t, grid) for t in blocks[:-1]] if stages == "blocks" else []
            outputs.append(maps)
        final = self.norm(blocks[-1])
        pooled = final.mean(dim=1) if self.cls_token is None else final[:, 0]
        return Features(pooled, to_map(final, grid), outputs if stages else None, raw_grid=maps)


class Stage(nn.Module):
    """An embedding and blocks. `built_for` is the grid of the positions, if any; other grids have them resized."""

    def __init__(self, embed: Embedding, blocks: Sequence[Block], class_token: bool, built_for: Grid | None = None):
        super().__init__()
        dim = embed.norm.normalized_shape[0]
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)
        self.built_for = built_for
        self.cls_token = _init_tokens(1, dim) if class_token else None
        self.pos_embed = _init_tokens(class_token + math.prod(built_for), dim) if built_for else None

    def forward(self, maps: Tensor) -> tuple[list[Tensor], Grid]:
        """Return the tokens after each block, and their grid."""
        tokens, grid = self.embed(maps)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1).to(tokens.dtype), tokens], dim=1)
        if self.pos_embed is not None and self.built_for is not None:
            tokens = tokens + resize_positions(self.pos_embed, self.built_for, grid)
        outputs = [tokens]
        for block in self.blocks:
            outputs.append(block(outputs[-1], grid))
        return outputs[1:], grid


class Embedding(nn.Module):
    """A strided convolution and a norm. If its patches do not overlap, sides are padded to a multiple of them."""

    def __init__(self, convolution: nn.Conv2d, norm: Callable[[int], nn.LayerNorm] = nn.LayerNorm):
        super().__init__()
        self.proj = convolution
        self.side = convolution.stride[0] if convolution.padding == (0, 0) else 1
        self.norm = norm(convolution.out_channels)

    def forward(self, maps: Tensor) -> tuple[Tensor, Grid]:
        maps = self.proj(pad_to_multiple(maps, self.side))
        return self.norm(maps.flatten(2).transpose(1, 2)), (maps.shape[-2], maps.shape[-1])


class Block(nn.Module):
    """Attention and an MLP, each after a norm and with a residual."""

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        drop_path: float,
        norm: Callable[[int], nn.Module],
        mlp_ratio: int = 4,
        activation: type[nn.Module] = nn.GELU,
    ):
        super().__init__()
        self.norm1 = norm(dim)
        self.attn = attention
        self.norm2 = norm(dim)
        self.mlp = Mlp(dim, mlp_ratio * dim, act_layer=activation)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        tokens = tokens + self.drop_path(self.attn(self.norm1(tokens), grid))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


def pad_to_multiple(maps: Tensor, side: int) -> Tensor:
    """Pad maps [B, D, h, w] with zeros below and to the right, up to multiples of `side`."""
    pad_h, pad_w = (-length % side for length in maps.shape[-2:])
    return F.pad(maps, (0, pad_w, 0, pad_h)) if pad_h or pad_w else maps


def make_drop_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Make rates that rise from 0 to `rate` over all blocks, one list per stage."""
    rates = [rate * i / max(1, sum(depths) - 1) for i in range(sum(depths))]
    ends = [sum(depths[:i]) for i in range(len(depths) + 1)]
    return [rates[start:end] for start, end in pairwise(ends)]


def _init_tokens(count: int, dim: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, count, dim), std=0.02))
