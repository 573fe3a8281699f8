"""CvT (Wu et al., ICCV 2021): three stages of convolutional token embeddings and convolutional attention.

It needs no positions. The authors' version and the one that DRLoc trained (without drop path) differ; both are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from timm.layers import QuickGELU
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.dot_product import DotProductAttention, merge_heads
from vitling.backbones.features import Features, Stages, to_map
from vitling.backbones.position import Grid
from vitling.backbones.pyramid import Block


class ChannelNorm(nn.Module):
    """(x − μ) / (σ + ε) over the channels, where nn.LayerNorm adds ε to σ²."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        variance, mean = torch.var_mean(tokens.float(), dim=-1, correction=0, keepdim=True)
        std = variance.clamp_min(1e-20).sqrt()  # the gradient of the root is infinite at 0
        return ((tokens - mean) / (std + 1e-5) * self.weight + self.bias).to(self.weight.dtype)


class Form(NamedTuple):
    """The differences between the two versions."""

    norm: Callable[[int], nn.Module]
    activation: type[nn.Module]
    first_padding: int
    values_convolved: bool  # on their own; else keys and values share a depthwise convolution
    bias: bool  # in the projections of queries, keys and values
    scale_by_head: bool  # 1/√(width of a head); else 1/√(whole width)
    class_token: bool  # in the last stage, followed by a norm; else the mean of the map, without a norm
    trunc_normal: bool  # else torch's default initialisation


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
    """CvT with three stages."""

    pretrained_cfg: ClassVar = {"classifier": "head", "first_conv": None}  # same attribute as on timm models

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
            drop_path = drop_path_rate if i == len(dims) - 1 else 0.0  # the authors drop only in the last stage
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
    """A convolutional embedding and blocks."""

    def __init__(self, embed: nn.Conv2d, dim: int, depth: int, heads: int, drop_path: float, form: Form):
        super().__init__()
        self.embed = embed
        self.norm = form.norm(dim)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.ModuleList(
            Block(dim, ConvAttention(dim, heads, form), rate, form.norm, activation=form.activation) for rate in rates
        )

    def forward(self, maps: Tensor, cls_token: Tensor | None = None) -> tuple[list[Tensor], Grid]:
        """Return the tokens after each block, and their grid."""
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


class ConvAttention(nn.Module):
    """Eq. 2: convolve queries, keys and values as maps before projecting them, the latter two with stride 2."""

    def __init__(self, dim: int, heads: int, form: Form):
        super().__init__()
        self.heads = heads
        self.conv_q, self.conv_k = DepthwiseConv(dim, stride=1), DepthwiseConv(dim, stride=2)
        self.conv_v = DepthwiseConv(dim, stride=2) if form.values_convolved else None
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(dim, dim, bias=form.bias) for _ in range(3))
        self.mix = DotProductAttention((dim // heads if form.scale_by_head else dim) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        keys = self.conv_k(tokens, grid)
        values = keys if self.conv_v is None else self.conv_v(tokens, grid)
        projected = self.proj_q(self.conv_q(tokens, grid)), self.proj_k(keys), self.proj_v(values)
        mixed = self.mix(*(t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in projected))
        return self.proj(merge_heads(mixed))


class DepthwiseConv(nn.Module):
    """A 3 x 3 convolution and batch norm over the map; a class token bypasses it."""

    def __init__(self, dim: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, stride, padding=1, groups=dim, bias=False)
        self.bn = nn.BatchNorm2d(dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        convolved = self.bn(self.conv(to_map(tokens, grid))).flatten(2).transpose(1, 2)
        prefix = tokens[:, : tokens.shape[1] - grid[0] * grid[1]]
        return torch.cat([prefix.to(convolved.dtype), convolved], dim=1) if prefix.shape[1] else convolved
