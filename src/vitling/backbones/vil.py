"""ViL (Zhang et al., ICCV 2021) as EsViT trained it: four stages, relative positions alone, one global token.

In the first two stages a token sees the 3 x 3 chunks about its own and the global token; in the others it sees all. The
release trains with one neighbouring chunk drawn at random (MODE 1), and evaluates with all: here it is all, always.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.mix import Mix, from_heads, to_heads
from vitling.backbones.position import Grid, resize_map
from vitling.backbones.pyramid import Block, Embedding, Pyramid, Stage, drop_paths

EPSILON = 1e-6


class ViL(Pyramid):
    """`form` says what the bias of the last two stages is at another grid than theirs, see `FullAttention`."""

    def __init__(
        self,
        form: Literal["released", "paper"],
        img_size: int,
        dims: Sequence[int],
        depths: Sequence[int],
        heads: Sequence[int],
        chunk: int,
        in_chans: int = 3,
        drop_path_rate: float = 0.0,
    ):
        stages, side = [], img_size // 4
        rates = drop_paths(drop_path_rate, depths)
        for i, (dim_in, dim) in enumerate(zip((in_chans, *dims), dims)):
            patch, has_global = 2 if i else 4, i < len(dims) - 1
            side = -(-side // 2) if i else side
            attentions = [
                SlidingAttention(dim, heads[i], chunk)
                if i < 2
                else FullAttention(dim, heads[i], side, has_global, form)
                for _ in rates[i]
            ]
            blocks = [Block(dim, attention, rate, EPSILON) for attention, rate in zip(attentions, rates[i])]
            embed = Embedding(nn.Conv2d(dim_in, dim, patch, patch), EPSILON)
            stages.append(Stage(embed, blocks, class_token=has_global))
        super().__init__(stages, nn.LayerNorm(dims[-1], EPSILON))
        self.apply(init_weights_vit_timm)


class FullAttention(nn.Module):
    """Every token sees every one, with a bias by how far apart they lie, and others from and to the global token.

    At another grid than `side` x `side` the release resizes the whole matrix of biases, tokens x tokens, as if it were
    an image ("released"). Or the biases are those of the same distances, and a greater grid has its table resized
    ("paper").
    """

    def __init__(self, dim: int, heads: int, side: int, has_global: bool, form: str):
        super().__init__()
        self.heads, self.side, self.form = heads, side, form
        self.qkv = nn.Linear(dim, 3 * dim)
        self.relative_position_bias_table = _drawn((2 * side - 1) ** 2, heads)
        self.global_bias = GlobalBias(heads) if has_global else None
        self.mix = Mix((dim // heads) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        bias = self.bias(grid)
        bias = bias if self.global_bias is None else self.global_bias.around(bias)
        return self.proj(from_heads(self.mix(*to_heads(self.qkv(tokens), 3, self.heads), bias[None])))

    def bias(self, grid: Grid) -> Tensor:
        """[heads, h*w, h*w]"""
        side: int = self.side
        table: Tensor = self.relative_position_bias_table
        if self.form == "released":
            whole = by_distance(table, (side, side), (side, side), side - 1)
            tokens = grid[0] * grid[1]
            return whole if grid == (side, side) else resize_map(whole[None], (tokens, tokens))[0]
        if max(grid) > side:
            side = max(grid)
            maps = resize_map(table.T.reshape(1, self.heads, 2 * self.side - 1, -1), (2 * side - 1, 2 * side - 1))
            table = maps.flatten(2)[0].T
        return by_distance(table, grid, grid, side - 1)


class SlidingAttention(nn.Module):
    """A token sees the chunks of `side` x `side` about its own and the global token, and that one sees all."""

    def __init__(self, dim: int, heads: int, side: int):
        super().__init__()
        self.heads, self.side = heads, side
        self.query, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.relative_position_bias_table = _drawn((4 * side - 1) ** 2, heads)
        self.global_bias = GlobalBias(heads)
        self.mix = Mix((dim // heads) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        q, kv = self.query(tokens), self.kv(tokens)
        (first,), (k, v) = to_heads(q[:, :1], 1, self.heads), to_heads(kv, 2, self.heads)
        updated = self.mix(first, k, v, self.global_bias.from_global(k.shape[2] - 1)[None])
        return self.proj(torch.cat([from_heads(updated), self._local(q[:, 1:], kv, grid)], dim=1))

    def _local(self, q: Tensor, kv: Tensor, grid: Grid) -> Tensor:
        """Chunks and heads side by side, so that one bias serves every image: [B, chunks * heads, tokens, d]."""
        side, heads = self.side, self.heads
        down, across = (-length % side for length in grid)
        chunks = ((grid[0] + down) // side, (grid[1] + across) // side)
        queries = F.pad(q.unflatten(1, grid), (0, 0, 0, across, 0, down))
        around = F.pad(kv[:, 1:].unflatten(1, grid), (0, 0, side, side + across, side, side + down))
        queries = windows(queries, side, side)
        shared = kv[:, :1, None].expand(-1, queries.shape[1], -1, -1)
        keys = torch.cat([shared, windows(around, 3 * side, side)], dim=2)
        (queries,), (k, v) = _chunk_heads(queries, 1, heads), _chunk_heads(keys, 2, heads)
        mixed = self.mix(queries, k, v, self._chunk_bias(grid, chunks).flatten(0, 1)[None])
        mixed = mixed.unflatten(1, (*chunks, heads)).unflatten(4, (side, side))  # [B, m, n, heads, side, side, d]
        maps = mixed.permute(0, 1, 4, 2, 5, 3, 6).flatten(5).flatten(3, 4).flatten(1, 2)
        return maps[:, : grid[0], : grid[1]].flatten(1, 2)

    def _chunk_bias(self, grid: Grid, chunks: Grid) -> Tensor:
        """[chunks, heads, side², 1 + 9 side²]; −∞ for what lies outside of the map."""
        side, table = self.side, self.relative_position_bias_table
        local = by_distance(table, (side, side), (3 * side, 3 * side), 2 * side - 1, offset=side)
        to_global = self.global_bias.to_global.expand(-1, side * side, 1)
        inside = [_inside(length, count, side, table.device) for length, count in zip(grid, chunks)]
        seen = (inside[0][:, None, :, None] & inside[1][None, :, None, :]).flatten(2).flatten(0, 1)
        local = torch.where(seen[:, None, None], local[None], float("-inf"))
        return torch.cat([to_global[None].expand(len(seen), -1, -1, -1), local], dim=3)


class GlobalBias(nn.Module):
    """Of each head: from the global token to others, from others to it, and to itself."""

    def __init__(self, heads: int):
        super().__init__()
        self.local_position_bias = nn.Parameter(nn.init.trunc_normal_(torch.zeros(2, heads, 1), std=0.02))
        self.global_position_bias = nn.Parameter(nn.init.trunc_normal_(torch.zeros(heads, 1, 1), std=0.02))

    @property
    def to_global(self) -> Tensor:
        return self.local_position_bias[1][:, :, None]

    def from_global(self, others: int) -> Tensor:
        """[heads, 1, 1 + others]"""
        return torch.cat(
            [self.global_position_bias, self.local_position_bias[0][:, :, None].expand(-1, 1, others)], dim=2
        )

    def around(self, bias: Tensor) -> Tensor:
        """[heads, n, n] to [heads, 1 + n, 1 + n], the global token first."""
        others = bias.shape[1]
        local = torch.cat([self.to_global.expand(-1, others, 1), bias], dim=2)
        return torch.cat([self.from_global(others), local], dim=1)


def by_distance(table: Tensor, queries: Grid, keys: Grid, reach: int, offset: int = 0) -> Tensor:
    """[heads, queries, keys] from a table of distances −reach to reach, down and across; keys start `offset` before."""
    down, across = (
        torch.arange(q, device=table.device)[:, None] - torch.arange(k, device=table.device) + offset + reach
        for q, k in zip(queries, keys)
    )
    index = down[:, None, :, None] * (2 * reach + 1) + across[None, :, None, :]
    return table[index.flatten(2).flatten(0, 1)].permute(2, 0, 1)


def windows(maps: Tensor, size: int, step: int) -> Tensor:
    """[B, h, w, C] to [B, windows, size², C]"""
    return maps.unfold(1, size, step).unfold(2, size, step).permute(0, 1, 2, 4, 5, 3).flatten(3, 4).flatten(1, 2)


def _chunk_heads(projected: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[B, chunks, N, parts * heads * d] to `parts` tensors [B, chunks * heads, N, d]."""
    split = projected.unflatten(3, (parts, heads, -1)).permute(3, 0, 1, 4, 2, 5)
    return split.flatten(2, 3).unbind(0)


def _inside(length: int, chunks: int, side: int, device: torch.device) -> Tensor:
    """[chunks, 3 side]: whether what each chunk has about it, along one axis, lies in the map."""
    place = torch.arange(chunks, device=device)[:, None] * side + torch.arange(-side, 2 * side, device=device)
    return (place >= 0) & (place < length)


def _drawn(count: int, heads: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(count, heads), std=0.02))
