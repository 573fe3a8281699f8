"""Triton kernels of `short_attention`: all keys of a head stay in registers, so no pass over them is needed.

Tensors are [images, tokens, heads, width], of which the last dimension is contiguous. A program takes one head of one
image, and a part of its queries. Sums over queries are written per part and added in a fixed order afterwards, so
results are deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitling.backbones.kernels import set_kernel_cache

LOG2_E = 1.4426950408889634
QUERIES = 64  # of a step
STEPS = 8  # of a program, at most
OPTIONS = {"num_warps": 4, "num_stages": 3, "enable_fp_fusion": True}  # with 2 stages a step waits for its own loads


@triton.jit
def _locate(x, heads, image_stride, head_stride):
    """Move to the image and the head of this program."""
    pair = tl.program_id(0).to(tl.int64)
    return x + pair // heads * image_stride + pair % heads * head_stride


@triton.jit
def _load(x, row, rows, stride, WIDTH: tl.constexpr):
    """Load rows, 0 for those that do not exist."""
    return tl.load(x + row[:, None] * stride + tl.arange(0, WIDTH)[None, :], mask=row[:, None] < rows, other=0.0)


@triton.jit
def _store(x, row, rows, stride, values, WIDTH: tl.constexpr):
    place = x + row[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(place, values.to(x.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def _weigh(q, k, known, scale):
    """Compute softmax(scale q k^T); `scale` contains the factor from exp to exp2."""
    scores = tl.where(known, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit(do_not_specialize=["heads", "queries", "keys"])
def _attend(
    q, k, v, out, scale, heads, queries, keys,
    q_image, q_token, q_head, k_image, k_token, k_head, out_image, out_token, out_head,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute softmax(scale q k^T) v."""
    q, out = _locate(q, heads, q_image, q_head), _locate(out, heads, out_image, out_head)
    key = tl.arange(0, KEYS)
    keys_here = _load(_locate(k, heads, k_image, k_head), key, keys, k_token, WIDTH)
    values = _load(_locate(v, heads, k_image, k_head), key, keys, k_token, WIDTH)
    first = tl.program_id(1) * QUERIES * STEPS
    for start in range(first, tl.minimum(first + QUERIES * STEPS, queries), QUERIES):
        row = start + tl.arange(0, QUERIES)
        weights = _weigh(_load(q, row, queries, q_token, WIDTH), keys_here, (key < keys)[None, :], scale)
        mixed = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        _store(out, row, queries, out_token, mixed, WIDTH)


@triton.jit(do_not_specialize=["heads", "queries", "keys"])
def _differentiate(
    q, k, v, out_gradient, q_gradient, sums, scale, slope, heads, queries, keys,
    q_image, q_token, q_head, k_image, k_token, k_head, out_image, out_token, out_head,
    sums_part, sums_kind, sums_image, sums_token, sums_head,
    WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of q and, summed over the queries of this program, those of k and v.

    With weights p and dp = dout v^T, the gradient of the scores is ds = p (dp - sum of p dp over the keys).
    """
    q, q_gradient = _locate(q, heads, q_image, q_head), _locate(q_gradient, heads, out_image, out_head)
    out_gradient = _locate(out_gradient, heads, out_image, out_head)
    key = tl.arange(0, KEYS)
    keys_here = _load(_locate(k, heads, k_image, k_head), key, keys, k_token, WIDTH)
    values = _load(_locate(v, heads, k_image, k_head), key, keys, k_token, WIDTH)
    k_sum = tl.zeros((KEYS, WIDTH), tl.float32)
    v_sum = tl.zeros((KEYS, WIDTH), tl.float32)
    first = tl.program_id(1) * QUERIES * STEPS
    for start in range(first, tl.minimum(first + QUERIES * STEPS, queries), QUERIES):
        row = start + tl.arange(0, QUERIES)
        queries_here = _load(q, row, queries, q_token, WIDTH)
        out_slope = _load(out_gradient, row, queries, out_token, WIDTH)
        weights = _weigh(queries_here, keys_here, (key < keys)[None, :], scale)
        v_sum += tl.dot(tl.trans(weights.to(out_slope.dtype)), out_slope, input_precision="ieee")
        weight_slope = tl.dot(out_slope, tl.trans(values), input_precision="ieee")
        score_slope = weights * (weight_slope - tl.sum(weights * weight_slope, 1)[:, None])
        rounded = score_slope.to(keys_here.dtype)
        k_sum += tl.dot(tl.trans(rounded), queries_here, input_precision="ieee")
        q_slope = tl.dot(rounded, keys_here, input_precision="ieee") * slope
        _store(q_gradient, row, queries, out_token, q_slope, WIDTH)
    sums = _locate(sums, heads, sums_image, sums_head) + tl.program_id(1).to(tl.int64) * sums_part
    _store(sums, key, keys, sums_token, k_sum * slope, WIDTH)
    _store(sums + sums_kind, key, keys, sums_token, v_sum, WIDTH)


def compute_output(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Compute softmax(scale q k^T) v for each head."""
    set_kernel_cache(q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    strides = *q.stride()[:3], *k.stride()[:3], *out.stride()[:3]
    _attend[_make_grid(q)](q, k, v, out, scale * LOG2_E, *_list_counts(q, k), *strides, **_make_options(q, k))
    return out


def compute_gradients(out_gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Compute the gradient of q and, as [2, ...], those of k and v."""
    set_kernel_cache(q.device)
    grid, q_gradient = _make_grid(q), torch.empty_like(out_gradient)
    dtype = torch.float32 if grid[1] > 1 else k.dtype
    sums = torch.empty(grid[1], 2, *k.shape, dtype=dtype, device=k.device)
    strides = *q.stride()[:3], *k.stride()[:3], *out_gradient.stride()[:3], *sums.stride()[:5]
    _differentiate[grid](
        q, k, v, out_gradient, q_gradient, sums, scale * LOG2_E, scale, *_list_counts(q, k), *strides,
        **_make_options(q, k),
    )  # fmt: skip
    return q_gradient, sums[0] if grid[1] == 1 else sums.sum(0).to(k.dtype)


def _make_grid(q: Tensor) -> tuple[int, int]:
    return q.shape[0] * q.shape[2], triton.cdiv(q.shape[1], QUERIES * STEPS)


def _list_counts(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    return q.shape[2], q.shape[1], k.shape[1]


def _make_options(q: Tensor, k: Tensor) -> dict[str, int]:
    keys = max(16, triton.next_power_of_2(k.shape[1]))  # 16 at least for tensor cores
    return {"WIDTH": q.shape[3], "QUERIES": QUERIES, "KEYS": keys, "STEPS": STEPS, **OPTIONS}
