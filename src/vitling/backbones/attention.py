"""The last block's attention, computed again from its input: fused kernels do not hand it out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timm.layers import Attention as TokenAttention
from timm.models.pvt_v2 import Attention as PyramidAttention
from timm.models.swin_transformer import WindowAttention
from torch import Tensor, nn

from vitling.backbones.mix import Mix, to_heads
from vitling.backbones.position import Grid
from vitling.errors import UserError


@contextmanager
def recorded(module: nn.Module) -> Iterator[dict[str, Any]]:
    """While the block runs, what `module` was called with."""
    seen: dict[str, Any] = {}

    def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
        seen.update(args=args, kwargs=kwargs)

    handle = module.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def last_block(model: nn.Module) -> Any:
    """The block whose attention is asked for; a network without attention is the caller's mistake."""
    stages = getattr(model, "stages", None) or getattr(model, "layers", None)
    blocks = getattr(stages[-1] if stages is not None else model, "blocks", None)
    kinds = TokenAttention | PyramidAttention | WindowAttention
    if blocks is None or not (isinstance(blocks[-1].attn, kinds) or _mix(blocks[-1]) is not None):
        raise UserError(
            f"{type(model).__name__} has no attention to show. ViT, DeiT, T2T-ViT, Swin, PVT, PVTv2, CvT and ViL have."
        )
    return blocks[-1]


def watched(block: Any) -> nn.Module:
    """Whose input to record."""
    return _mix(block) or block.attn


def _mix(block: Any) -> Mix | None:
    return getattr(block.attn, "mix", None)


def attention_of(block: Any, seen: dict[str, Any], batch: int) -> Tensor:
    attn = block.attn
    tokens = seen["args"][0]
    if isinstance(attn, WindowAttention):
        return _of_one_window(block, tokens, batch)
    if _mix(block) is not None:  # the recorded input is queries, keys, values and perhaps a bias
        q, k, _, *bias = seen["args"]
        _check_one(len(q) == batch)
        return _softmax(q, k, attn.mix.scale, *bias)
    if isinstance(attn, PyramidAttention):
        return _of_pyramid(attn, tokens, seen["args"][1])
    q, k = to_heads(attn.qkv(tokens), 3, attn.num_heads)[:2]
    return _softmax(attn.q_norm(q), attn.k_norm(k), attn.scale)


def select_query_attention(model: nn.Module, attention: Tensor, grid: Grid, query: Grid) -> Tensor:
    """[B, heads, rows, columns]: what the token at row and column `query` looks at, without class tokens and padding.

    Keys may be fewer than the tokens: then a place of the map is that of several tokens.
    """
    attn = last_block(model).attn
    queries, keys = attention.shape[2:]
    if isinstance(attn, WindowAttention):  # its window may be larger than the map
        across = attn.window_size[1]
        seen = attention[:, :, query[0] * across + query[1]].unflatten(2, attn.window_size)
        return seen[:, :, : grid[0], : grid[1]]
    prefix = queries - grid[0] * grid[1]
    seen = attention[:, :, prefix + query[0] * grid[1] + query[1], prefix:]
    return seen.unflatten(2, _key_grid(keys - prefix, grid))


def _key_grid(keys: int, grid: Grid) -> Grid:
    """As many as the tokens; by a convolution of stride 2 (CvT); or pooled to a square (the linear PVTv2)."""
    halved = (-(-grid[0] // 2), -(-grid[1] // 2))
    square = (math.isqrt(keys),) * 2
    return next(shape for shape in (grid, halved, square) if math.prod(shape) == keys)


def _of_one_window(block: Any, windows: Tensor, batch: int) -> Tensor:
    _check_one(len(windows) == batch and not any(block.shift_size))
    attn = block.attn
    q, k = to_heads(attn.qkv(windows), 3, attn.num_heads)[:2]
    return _softmax(q, k, attn.scale, attn._get_rel_pos_bias())


def _check_one(window: bool) -> None:
    if not window:
        raise UserError(
            "The last stage of this network has several windows at this input size, so there is no one "
            "attention map. Ask for it at 224 px or less, and square."
        )


def _of_pyramid(attn: Any, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Keys may be fewer than queries: PVTv2 reduces them by a strided convolution or by pooling."""
    (q,) = to_heads(attn.q(tokens), 1, attn.num_heads)
    if attn.sr is not None:
        maps = tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)
        maps = attn.sr(maps if attn.pool is None else attn.pool(maps))
        tokens = attn.norm(maps.flatten(2).transpose(1, 2))
        tokens = tokens if attn.act is None else attn.act(tokens)
    k = to_heads(attn.kv(tokens), 2, attn.num_heads)[0]
    return _softmax(q, k, attn.scale)


def _softmax(q: Tensor, k: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    scores = (q.float() * scale) @ k.float().transpose(-2, -1)
    return (scores if bias is None else scores + bias.float()).softmax(dim=-1)
