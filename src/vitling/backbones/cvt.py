"""CvT (Wu et al., ICCV 2021): tokens embedded by convolutions in three stages, attention over depthwise convolutions.

It needs no positions. Two versions are public, and differ: the authors', and the one that DRLoc trained, without drop
path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from timm.layers import DropPath, Mlp, QuickGELU
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.features import Features, Stages, to_map
from vitling.backbones.mix import Mix
from vitling.backbones.position import Grid


class ChannelNorm(nn.Module):
    """(x − μ) / (σ + ε) over the channels: ε beside σ, where nn.LayerNorm has it beside σ²."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        variance, mean = torch.var_mean(tokens.float(), dim=-1, correction=0, keepdim=True)
        deviation = variance.clamp_min(1e-20).sqrt()  # at 0 the root's gradient is infinite
        return ((tokens - mean) / (deviation + 1e-5) * self.weight + self.bias).to(self.weight.dtype)


class Form(NamedTuple):
    norm: Callable[[int], nn.Module]
    activation: type[nn.Module]
    first_padding: int
    values_convolved: bool  # by themselves; else keys and values share one depthwise convolution
    bias: bool  # of queries, keys and values
    scale_by_head: bool  # 1/√(width of a head); else 1/√(width of all)
    class_token: bool  # in the last stage, with a norm after it; else the mean of the map, without
    trunc_normal: bool  # else torch's own initial values


FORMS = {
    "drloc": Form(
        ChannelNorm,
        nn.GELU,
        first_padding=3,
        values_convolved=False,
        bias=False,
        scale_by_head=True,
        class_token=False,
        trunc_normal=False,
    ),
    "official": Form(
        nn.LayerNorm,
        QuickGELU,
        first_padding=2,
        values_convolved=True,
        bias=True,
        scale_by_head=False,
        class_token=True,
        trunc_normal=True,
    ),
}


class CvT(nn.Module):
    pretrained_cfg: ClassVar = {"classifier": "head", "first_conv": None}  # what a saved model asks of timm's networks

    def __init__(
        self,
        form: Literal["drloc", "official"],
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        in_chans: int = 3,
        drop_path_rate: float = 0.0,
    ):
        super().__init__()
        chosen = FORMS[form]
        self.num_features = dims[-1]
        self.stages = nn.ModuleList()
        for i, (dim_in, dim, depth) in enumerate(zip((in_chans, *dims), dims, depths)):
            embed = nn.Conv2d(dim_in, dim, 3, 2, 1) if i else nn.Conv2d(dim_in, dim, 7, 4, padding=chosen.first_padding)
            drop_path = drop_path_rate if i == len(dims) - 1 else 0.0  # the authors drop in the last stage alone
            self.stages.append(Stage(embed, dim, depth, heads[i], drop_path, chosen))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dims[-1])) if chosen.class_token else None
        self.norm = chosen.norm(dims[-1]) if chosen.class_token else None
        if chosen.trunc_normal:
            self.apply(init_weights_vit_timm)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}

    def forward(self, x: Tensor, stages: Stages = False) -> Features:
        maps, outputs = x, []
        for stage in self.stages:
            blocks, grid = stage(maps, self.cls_token if stage is self.stages[-1] else None)
            tokens = blocks[-1]
            maps = to_map(tokens, grid)
            outputs += [to_map(t, grid) for t in blocks[:-1]] if stages == "blocks" else []
            outputs.append(maps)
        kept = outputs if stages else None
        if self.norm is None:
            return Features(maps.mean(dim=(2, 3)), maps, kept)
        final = self.norm(tokens)
        return Features(final[:, 0], to_map(final, grid), kept, raw_grid=maps)


class Stage(nn.Module):
    def __init__(self, embed: nn.Conv2d, dim: int, depth: int, heads: int, drop_path: float, form: Form):
        super().__init__()
        self.embed = embed
        self.norm = form.norm(dim)
        self.blocks = nn.ModuleList(Block(dim, heads, drop_path * i / max(1, depth - 1), form) for i in range(depth))

    def forward(self, maps: Tensor, cls_token: Tensor | None = None) -> tuple[list[Tensor], Grid]:
        """The tokens that each block gives."""
        maps = self.embed(maps)
        grid = (maps.shape[-2], maps.shape[-1])
        tokens = self.norm(maps.flatten(2).transpose(1, 2))
        if cls_token is not None:
            tokens = torch.cat([cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        outputs = []
        for block in self.blocks:
            tokens = block(tokens, grid)
            outputs.append(tokens)
        return outputs, grid


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, drop_path: float, form: Form):
        super().__init__()
        self.norm1 = form.norm(dim)
        self.attn = ConvAttention(dim, heads, form)
        self.norm2 = form.norm(dim)
        self.mlp = Mlp(dim, 4 * dim, act_layer=form.activation)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        tokens = tokens + self.drop_path(self.attn(self.norm1(tokens), grid))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


class ConvAttention(nn.Module):
    """Eq. 2: queries, keys and values are convolved as maps before they are projected; the latter two with stride 2."""

    def __init__(self, dim: int, heads: int, form: Form):
        super().__init__()
        self.heads = heads
        self.conv_q, self.conv_k = DepthwiseConv(dim, stride=1), DepthwiseConv(dim, stride=2)
        self.conv_v = DepthwiseConv(dim, stride=2) if form.values_convolved else None
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(dim, dim, bias=form.bias) for _ in range(3))
        self.mix = Mix((dim // heads if form.scale_by_head else dim) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        keys = self.conv_k(tokens, grid)
        values = keys if self.conv_v is None else self.conv_v(tokens, grid)
        projected = self.proj_q(self.conv_q(tokens, grid)), self.proj_k(keys), self.proj_v(values)
        mixed = self.mix(*(t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in projected))
        return self.proj(mixed.transpose(1, 2).flatten(2))


class DepthwiseConv(nn.Module):
    """3 x 3 with batch norm over the map's tokens; a class token passes by."""

    def __init__(self, dim: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False)
        self.bn = nn.BatchNorm2d(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        convolved = self.bn(self.conv(to_map(tokens, grid))).flatten(2).transpose(1, 2)
        prefix = tokens[:, : tokens.shape[1] - grid[0] * grid[1]]
        return torch.cat([prefix.to(convolved.dtype), convolved], dim=1) if prefix.shape[1] else convolved
