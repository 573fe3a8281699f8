"""T2T-ViT (Yuan et al., ICCV 2021): three soft splits with attention between them make the tokens of a narrow ViT.

Parameter names match the authors' checkpoints, so these can be loaded.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from timm.models.vision_transformer import Block, init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.features import Features, Stages, to_map
from vitling.backbones.position import Grid, resize_positions

SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))  # kernel, stride, padding
TOKEN_DIM = 64  # width of the attention between the splits
EPSILON = 1e-8  # added to the denominator of Performer attention


class T2TViT(nn.Module):
    """T2T-ViT with fixed sinusoidal positions, which number the tokens row by row.

    For images of another size than `img_size`, "resized" resizes them as a map, as IDMM's release does on transfer, so
    that a position keeps its place in the image. "recomputed" numbers the tokens of the new grid, as a T2T-ViT that is
    built for that size does.
    """

    pretrained_cfg: ClassVar = {"classifier": "head", "first_conv": None}  # same attribute as on timm models
    pos_embed: Tensor

    def __init__(
        self,
        img_size: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        tokens: Literal["performer", "transformer"],
        token_dropout: float,
        in_chans: int = 3,
        drop_path_rate: float = 0.0,
        positions: Literal["resized", "recomputed"] = "resized",
    ):
        super().__init__()
        self.num_features = dim
        self.positions = positions
        self.tokens_to_token = TokensToToken(in_chans, dim, tokens, token_dropout)
        self.built_for = _split_grid((img_size, img_size))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.register_buffer("pos_embed", sinusoids(1 + math.prod(self.built_for), dim))
        self.blocks = nn.ModuleList(
            Block(dim, heads, mlp_ratio, drop_path=drop_path_rate * i / max(1, depth - 1), norm_layer=nn.LayerNorm)
            for i in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(init_weights_vit_timm)

    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}

    def forward(self, x: Tensor, stages: Stages = False) -> Features:
        spatial, grid = self.tokens_to_token(x)
        tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), spatial], dim=1)
        tokens = tokens + self._fit_positions(grid)
        outputs = []
        for block in self.blocks:
            tokens = block(tokens)
            if stages:
                outputs.append(to_map(tokens, grid))
        final = self.norm(tokens)
        return Features(
            final[:, 0],
            to_map(final, grid),
            outputs if stages else None,
            raw_grid=to_map(tokens, grid),
            published="after",
        )

    def _fit_positions(self, grid: Grid) -> Tensor:
        if self.positions == "resized" or grid == self.built_for:
            return resize_positions(self.pos_embed, self.built_for, grid)
        return sinusoids(1 + math.prod(grid), self.num_features, self.pos_embed.device)


class TokensToToken(nn.Module):
    """Eq. 4: attention, back to a map, soft split, repeated; then a projection to the ViT's width."""

    def __init__(self, channels: int, dim: int, kind: str, dropout: float):
        super().__init__()
        widths = [c * kernel**2 for c, (kernel, _, _) in zip((channels, TOKEN_DIM, TOKEN_DIM), SPLITS)]
        generator = torch.Generator().manual_seed(torch.initial_seed())  # the run's seed, independent of earlier draws
        self.attention1, self.attention2 = (
            TokenPerformer(width, TOKEN_DIM, dropout, generator)
            if kind == "performer"
            else TokenTransformer(width, TOKEN_DIM, dropout)
            for width in widths[:2]
        )
        self.project = nn.Linear(widths[2], dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        tokens, grid = soft_split(x, *SPLITS[0])
        for attention, split in zip((self.attention1, self.attention2), SPLITS[1:]):
            tokens, grid = soft_split(to_map(attention(tokens), grid), *split)
        return self.project(tokens), grid


def soft_split(maps: Tensor, kernel: int, stride: int, padding: int) -> tuple[Tensor, Grid]:
    """Unfold maps [B, C, H, W] into overlapping patches, tokens [B, h*w, C*kernel²], and return (h, w) of Eq. 3."""
    tokens = F.unfold(maps, kernel, padding=padding, stride=stride).transpose(1, 2)
    height, width = (_split_side(side, kernel, stride, padding) for side in maps.shape[-2:])
    return tokens, (height, width)


def _split_side(side: int, kernel: int, stride: int, padding: int) -> int:
    return (side + 2 * padding - kernel) // stride + 1


def _split_grid(size: Grid) -> Grid:
    height, width = size
    for split in SPLITS:
        height, width = _split_side(height, *split), _split_side(width, *split)
    return height, width


class TokenPerformer(nn.Module):
    """Linear-cost attention and a small MLP. The residual is the values, because the input width differs."""

    w: Tensor

    def __init__(self, dim_in: int, dim: int, dropout: float, generator: torch.Generator):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim_in)
        self.kqv = nn.Linear(dim_in, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.Dropout(dropout))
        drawn = draw_orthogonal_features(dim // 2, dim, generator)
        self.register_buffer("w", torch.empty(drawn.shape).copy_(drawn))  # drawn on the CPU, kept on the default device

    def forward(self, tokens: Tensor) -> Tensor:
        k, q, v = self.kqv(self.norm1(tokens)).chunk(3, dim=-1)
        tokens = v + self.dropout(self.proj(performer_attention(q, k, v, self.w)))
        return tokens + self.mlp(self.norm2(tokens))


def performer_attention(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Estimate softmax(q kᵀ) v with the features w [m, D], at a cost linear in the tokens.

    Always in fp32: φ spans many orders of magnitude, and half precision cannot represent 1e-8.
    """
    with torch.autocast("cpu" if q.is_meta else q.device.type, enabled=False):
        q, k = compute_positive_features(q.float(), w), compute_positive_features(k.float(), w)
        mixed = q @ (k.transpose(1, 2) @ v.float())
        total = q @ k.sum(dim=1, keepdim=True).transpose(1, 2)
        return mixed / (total + EPSILON)


def compute_positive_features(x: Tensor, w: Tensor) -> Tensor:
    """Compute φ(x) = exp(wᵀx − ‖x‖²/2) / √m, with E[φ(x)ᵀφ(y)] = exp(xᵀy) (Choromanski et al. 2021, Lemma 1)."""
    return torch.exp(x @ w.float().T - x.square().sum(dim=-1, keepdim=True) / 2) / math.sqrt(w.shape[0])


def draw_orthogonal_features(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Draw a matrix [count, dim] with orthogonal rows of length √count, as in the release; Lemma 1 has about √dim."""
    q, r = torch.linalg.qr(torch.randn(dim, count, generator=generator, device="cpu"))
    return (q * r.diagonal().sign()).T * math.sqrt(count)  # the signs make the distribution uniform


class TokenTransformer(nn.Module):
    """Softmax attention and an MLP, in place of `TokenPerformer`."""

    def __init__(self, dim_in: int, dim: int, dropout: float):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim_in)
        self.attn = NarrowingAttention(dim_in, dim, dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, drop=dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class NarrowingAttention(nn.Module):
    """One head from `dim_in` to `dim`, with the values as residual, scaled by the input's width."""

    def __init__(self, dim_in: int, dim: int, dropout: float):
        super().__init__()
        self.scale = dim_in**-0.5
        self.qkv = nn.Linear(dim_in, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        return v + self.dropout(self.proj(F.scaled_dot_product_attention(q, k, v, scale=self.scale)))


def sinusoids(count: int, dim: int, device: torch.device | None = None) -> Tensor:
    """Return [1, count, dim]: interleaved sin and cos of position / 10000^(2i/dim) (Vaswani et al. 2017, Sec. 3.5)."""
    frequencies = 10_000 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    angles = torch.arange(count, dtype=torch.float64, device=device)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(1, count, dim).float()
