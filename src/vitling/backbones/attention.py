"""The last block's attention, recomputed from its input, because fused kernels do not return it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from vitling.backbones.dot_product import split_heads
from vitling.backbones.position import Grid
from vitling.errors import UserError


class NoAttention(UserError):
    """There is no attention map to show."""


@contextmanager
def record_input(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Record the arguments of `module` while the context is open."""
    recorded: dict[str, Any] = {}

    def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
        recorded.update(args=args, kwargs=kwargs)

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield recorded
    finally:
        handle.remove()


def find_last_block(model: nn.Module) -> Any:
    """Find the last block with attention, or raise NoAttention."""
    stages = getattr(model, "stages", None) or getattr(model, "layers", None)
    blocks = getattr(stages[-1] if stages is not None else model, "blocks", None)
    attn = None if blocks is None else getattr(blocks[-1], "attn", None)
    if blocks is None or not (isinstance(attn, WindowAttention) or hasattr(attn, "mix")):
        raise NoAttention(
            f"{type(model).__name__} has no attention to show. Use ViT, DeiT, T2T-ViT, Swin, PVT, PVTv2, CvT or ViL."
        )
    return blocks[-1]


def find_attention(block: Any) -> nn.Module:
    """Find the module whose input `compute_attention` needs."""
    return getattr(block.attn, "mix", block.attn)


def compute_attention(block: Any, recorded: dict[str, Any], batch: int) -> Tensor:
    """Compute the attention [B, heads, queries, keys] from what `record_input` recorded."""
    if isinstance(block.attn, WindowAttention):
        return _compute_window_attention(block, recorded["args"][0], batch)
    q, k, _, *bias = recorded["args"]
    _check_single_window(len(q) == batch)
    return _softmax(q, k, block.attn.mix.scale, *bias)


def select_query_attention(model: nn.Module, attention: Tensor, grid: Grid, query: Grid) -> Tensor:
    """Select what the token at (row, column) `query` attends to, [B, heads, rows, columns].

    Class tokens and padding are left out. If there are fewer keys than tokens, a position of the map covers several.
    """
    attn = find_last_block(model).attn
    queries, keys = attention.shape[2:]
    if isinstance(attn, WindowAttention):  # the window may be larger than the map
        columns = attn.window_size[1]
        window = attention[:, :, query[0] * columns + query[1]].unflatten(2, attn.window_size)
        return window[:, :, : grid[0], : grid[1]]
    prefix = queries - grid[0] * grid[1]
    row = attention[:, :, prefix + query[0] * grid[1] + query[1], prefix:]
    return row.unflatten(2, _find_key_grid(keys - prefix, grid))


def _find_key_grid(keys: int, grid: Grid) -> Grid:
    """Find the grid of the keys: that of the tokens, half of it (CvT), or a square (linear PVTv2)."""
    halved = (-(-grid[0] // 2), -(-grid[1] // 2))
    square = (math.isqrt(keys),) * 2
    return next(shape for shape in (grid, halved, square) if math.prod(shape) == keys)


def _compute_window_attention(block: Any, windows: Tensor, batch: int) -> Tensor:
    _check_single_window(len(windows) == batch and not any(block.shift_size))
    attn = block.attn
    q, k = split_heads(attn.qkv(windows), 3, attn.num_heads)[:2]
    return _softmax(q, k, attn.scale, attn._get_rel_pos_bias())


def _check_single_window(is_single: bool) -> None:
    if not is_single:
        raise NoAttention(
            "The last stage of this network has several windows at this input size, so there is no single "
            "attention map. Use a square input of at most 224 px."
        )


def _softmax(q: Tensor, k: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    scores = (q.float() * scale) @ k.float().transpose(-2, -1)
    return (scores if bias is None else scores + bias.float()).softmax(dim=-1)
