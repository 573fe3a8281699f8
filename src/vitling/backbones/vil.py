"""ViL (Zhang et al., ICCV 2021) as EsViT trained it: four stages, relative positions only, one global token.

In the first two stages a token attends to the 3 x 3 chunks around its own and to the global token; in the others to all
tokens. The release trains with one random neighbouring chunk (MODE 1) and evaluates with all; here it is always all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from vitling.backbones.dot_product import DotProductAttention, merge_heads, split_heads
from vitling.backbones.position import Grid, resize_map
from vitling.backbones.pyramid import Block, Embedding, Pyramid, Stage, make_drop_rates

NORM = partial(nn.LayerNorm, eps=1e-6)


class ViL(Pyramid):
    """ViL. `form` chooses how the last two stages adapt their bias to another grid, see `FullAttention`."""

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
        rates = make_drop_rates(drop_path_rate, depths)
        for i, (dim_in, dim) in enumerate(zip((in_chans, *dims), dims)):
            patch, has_global = 2 if i else 4, i < len(dims) - 1
            side = -(-side // 2) if i else side
            attentions = [
                SlidingAttention(dim, heads[i], chunk)
                if i < 2
                else FullAttention(dim, heads[i], side, has_global, form)
                for _ in rates[i]
            ]
            blocks = [Block(dim, attention, rate, NORM) for attention, rate in zip(attentions, rates[i])]
            embed = Embedding(nn.Conv2d(dim_in, dim, patch, patch), NORM)
            stages.append(Stage(embed, blocks, class_token=has_global))
        super().__init__(stages, NORM(dims[-1]))
        self.apply(init_weights_vit_timm)


class FullAttention(nn.Module):
    """Attention between all tokens, with a bias by their distance and separate biases from and to the global token.

    At a grid other than `side` x `side`, "released" resizes the whole matrix of biases, tokens x tokens, as if it were
    an image. "paper" takes the biases of the same distances, and for a larger grid resizes the table.
    """

    def __init__(self, dim: int, heads: int, side: int, has_global: bool, form: str):
        super().__init__()
        self.heads, self.side, self.form = heads, side, form
        self.qkv = nn.Linear(dim, 3 * dim)
        self.relative_position_bias_table = _init_table((2 * side - 1) ** 2, heads)
        self.global_bias = GlobalBias(heads) if has_global else None
        self.mix = DotProductAttention((dim // heads) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        bias = self.compute_bias(grid)
        bias = bias if self.global_bias is None else self.global_bias.extend(bias)
        return self.proj(merge_heads(self.mix(*split_heads(self.qkv(tokens), 3, self.heads), bias[None])))

    def compute_bias(self, grid: Grid) -> Tensor:
        """Compute the bias between tokens, [heads, h*w, h*w]."""
        side: int = self.side
        table: Tensor = self.relative_position_bias_table
        if self.form == "released":
            whole = gather_bias(table, (side, side), (side, side), side - 1)
            tokens = grid[0] * grid[1]
            return whole if grid == (side, side) else resize_map(whole[None], (tokens, tokens))[0]
        if max(grid) > side:
            side = max(grid)
            maps = resize_map(table.T.reshape(1, self.heads, 2 * self.side - 1, -1), (2 * side - 1, 2 * side - 1))
            table = maps.flatten(2)[0].T
        return gather_bias(table, grid, grid, side - 1)


class SlidingAttention(nn.Module):
    """Attention to the chunks of `side` x `side` around a token's own and to the global token, which attends to all."""

    def __init__(self, dim: int, heads: int, side: int):
        super().__init__()
        self.heads, self.side = heads, side
        self.query, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.relative_position_bias_table = _init_table((4 * side - 1) ** 2, heads)
        self.global_bias = GlobalBias(heads)
        self.mix = DotProductAttention((dim // heads) ** -0.5)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, grid: Grid) -> Tensor:
        q, kv = self.query(tokens), self.kv(tokens)
        (first,), (k, v) = split_heads(q[:, :1], 1, self.heads), split_heads(kv, 2, self.heads)
        updated = self.mix(first, k, v, self.global_bias.from_global(k.shape[2] - 1)[None])
        return self.proj(torch.cat([merge_heads(updated), self._attend_locally(q[:, 1:], kv, grid)], dim=1))

    def _attend_locally(self, q: Tensor, kv: Tensor, grid: Grid) -> Tensor:
        """Attend with chunks and heads in one dimension, [B, chunks * heads, tokens, d], so images share a bias."""
        side, heads = self.side, self.heads
        pad_h, pad_w = (-length % side for length in grid)
        chunks = ((grid[0] + pad_h) // side, (grid[1] + pad_w) // side)
        queries = F.pad(q.unflatten(1, grid), (0, 0, 0, pad_w, 0, pad_h))
        around = F.pad(kv[:, 1:].unflatten(1, grid), (0, 0, side, side + pad_w, side, side + pad_h))
        queries = extract_windows(queries, side, side)
        shared = kv[:, :1, None].expand(-1, queries.shape[1], -1, -1)
        keys = torch.cat([shared, extract_windows(around, 3 * side, side)], dim=2)
        (queries,), (k, v) = _split_chunk_heads(queries, 1, heads), _split_chunk_heads(keys, 2, heads)
        mixed = self.mix(queries, k, v, self._compute_chunk_bias(grid, chunks).flatten(0, 1)[None])
        mixed = mixed.unflatten(1, (*chunks, heads)).unflatten(4, (side, side))  # [B, m, n, heads, side, side, d]
        maps = mixed.permute(0, 1, 4, 2, 5, 3, 6).flatten(5).flatten(3, 4).flatten(1, 2)
        return maps[:, : grid[0], : grid[1]].flatten(1, 2)

    def _compute_chunk_bias(self, grid: Grid, chunks: Grid) -> Tensor:
        """Return biases of shape [chunks, heads, side², 1 + 9 side²] that are −∞ outside the map."""
        side, table = self.side, self.relative_position_bias_table
        local = gather_bias(table, (side, side), (3 * side, 3 * side), 2 * side - 1, offset=side)
        to_global = self.global_bias.to_global.expand(-1, side * side, 1)
        inside = [_find_inside(length, count, side, table.device) for length, count in zip(grid, chunks)]
        visible = (inside[0][:, None, :, None] & inside[1][None, :, None, :]).flatten(2).flatten(0, 1)
        local = torch.where(visible[:, None, None], local[None], float("-inf"))
        return torch.cat([to_global[None].expand(len(visible), -1, -1, -1), local], dim=3)


class GlobalBias(nn.Module):
    """Biases per head: from the global token to others, from others to it, and from it to itself."""

    def __init__(self, heads: int):
        super().__init__()
        self.local_position_bias = nn.Parameter(nn.init.trunc_normal_(torch.zeros(2, heads, 1), std=0.02))
        self.global_position_bias = nn.Parameter(nn.init.trunc_normal_(torch.zeros(heads, 1, 1), std=0.02))

    @property
    def to_global(self) -> Tensor:
        return self.local_position_bias[1][:, :, None]

    def from_global(self, others: int) -> Tensor:
        """Make the global token's row, [heads, 1, 1 + others]."""
        return torch.cat(
            [self.global_position_bias, self.local_position_bias[0][:, :, None].expand(-1, 1, others)], dim=2
        )

    def extend(self, bias: Tensor) -> Tensor:
        """Extend biases [heads, n, n] to [heads, 1 + n, 1 + n], the global token first."""
        others = bias.shape[1]
        local = torch.cat([self.to_global.expand(-1, others, 1), bias], dim=2)
        return torch.cat([self.from_global(others), local], dim=1)


def gather_bias(table: Tensor, queries: Grid, keys: Grid, reach: int, offset: int = 0) -> Tensor:
    """Gather biases [heads, queries, keys] from a table of distances −reach..reach; keys start `offset` earlier."""
    row_offsets, col_offsets = (
        torch.arange(q, device=table.device)[:, None] - torch.arange(k, device=table.device) + offset + reach
        for q, k in zip(queries, keys)
    )
    index = row_offsets[:, None, :, None] * (2 * reach + 1) + col_offsets[None, :, None, :]
    return table[index.flatten(2).flatten(0, 1)].permute(2, 0, 1)


def extract_windows(maps: Tensor, size: int, step: int) -> Tensor:
    """Extract windows of [B, h, w, C] as [B, windows, size², C]."""
    return maps.unfold(1, size, step).unfold(2, size, step).permute(0, 1, 2, 4, 5, 3).flatten(3, 4).flatten(1, 2)


def _split_chunk_heads(projected: Tensor, count: int, heads: int) -> tuple[Tensor, ...]:
    """Split x [B, chunks, N, count * heads * d] into `count` tensors [B, chunks * heads, N, d]."""
    split = projected.unflatten(3, (count, heads, -1)).permute(3, 0, 1, 4, 2, 5)
    return split.flatten(2, 3).unbind(0)


def _find_inside(length: int, chunks: int, side: int, device: torch.device) -> Tensor:
    """Tell along one axis which positions around each chunk lie inside the map, [chunks, 3 side]."""
    position = torch.arange(chunks, device=device)[:, None] * side + torch.arange(-side, 2 * side, device=device)
    return (position >= 0) & (position < length)


def _init_table(count: int, heads: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.zeros(count, heads), std=0.02))
