"""Attention over at most 64 keys, as in PVTv2, whose keys are reduced, and in windows and small images.

On an H200, cuDNN's kernels for long sequences took 15 % of a training step of PVTv2-B0 at 112 px, whose blocks have 9
or 16 keys.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from vitling.backbones.kernels import check_outputs, draw_inputs, try_kernels

MAX_KEYS = 64
WIDTHS = (16, 32, 64)  # of a head
DTYPES = (torch.bfloat16, torch.float16)
_MIN_CAPABILITY = (8, 0)  # Ampere; the kernels have not been tried on older GPUs


def is_short(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether `attend` supports q, k, v [B, heads, tokens, width] and is meant for them."""
    if not q.is_cuda or q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return False
    fits = k.shape == v.shape and q.shape[:2] == k.shape[:2] and q.shape[3] == k.shape[3]
    short = 0 < k.shape[2] <= MAX_KEYS and q.shape[3] in WIDTHS and q.numel() > 0
    return fits and short and _has_kernels(q.device, q.dtype, q.shape[3], k.shape[2])


@torch.compiler.assume_constant_result
def _has_kernels(device: torch.device, dtype: torch.dtype, width: int, keys: int) -> bool:
    return has_kernels(device, dtype, width, keys)


@torch.library.custom_op("vitling::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Compute softmax(scale q k^T) v. All tensors are [B, tokens, heads, width]."""
    if not has_kernels(q.device, q.dtype, q.shape[3], k.shape[1]):
        return _attend_plainly(q, k, v, scale)
    from vitling.backbones.short_attention_kernels import compute_output

    with torch.cuda.device_of(q):
        return compute_output(*_align(q, k, v), scale)


@torch.library.custom_op("vitling::attend_backward", mutates_args=())
def attend_backward(out_gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Compute the gradient of q and, as [2, ...], those of k and v."""
    out_gradient = out_gradient.contiguous()
    if not has_kernels(q.device, q.dtype, q.shape[3], k.shape[1]):
        return _differentiate_plainly(out_gradient, q, k, v, scale)
    from vitling.backbones.short_attention_kernels import compute_gradients

    with torch.cuda.device_of(q):
        return compute_gradients(out_gradient, *_align(q, k, v), scale)


@cache
def has_kernels(device: torch.device, dtype: torch.dtype, width: int, keys: int) -> bool:
    """Try the kernels for heads of this width and this number of keys."""
    supported = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY
    return supported and try_kernels(partial(check_kernels, device, dtype, width, keys), device)


def check_kernels(device: torch.device, dtype: torch.dtype, width: int, keys: int) -> None:
    """Raise an exception unless the kernels compute what torch does."""
    from vitling.backbones.short_attention_kernels import compute_gradients, compute_output

    shapes = [(1, tokens, 2, width) for tokens in (70, 70, keys, keys)]
    slope, q, k, v = draw_inputs(dtype, *shapes)
    theirs = [
        _attend_plainly(q.float(), k.float(), v.float(), 0.2),
        *_differentiate_plainly(slope.float(), q.float(), k.float(), v.float(), 0.2),
    ]
    slope, q, k, v = (tensor.to(device) for tensor in (slope, q, k, v))
    check_outputs([compute_output(q, k, v, 0.2), *compute_gradients(slope, q, k, v, 0.2)], theirs)


def _align(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Make the last dimension contiguous, and the strides of k and v equal."""
    if k.stride() != v.stride() or k.stride(3) != 1:
        k, v = k.contiguous(), v.contiguous()
    return q if q.stride(3) == 1 else q.contiguous(), k, v


def _by_head(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _weigh(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (_by_head(q).float() @ _by_head(k).float().transpose(2, 3) * scale).softmax(-1)


def _attend_plainly(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        return (_weigh(q, k, scale).to(v.dtype) @ _by_head(v)).transpose(1, 2).contiguous()


def _differentiate_plainly(
    out_gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    with torch.autocast(q.device.type, enabled=False):
        slope, weights = _by_head(out_gradient).float(), _weigh(q, k, scale)
        weight_slope = slope @ _by_head(v).float().transpose(2, 3)
        score_slope = scale * weights * (weight_slope - (weights * weight_slope).sum(-1, keepdim=True))
        k_gradient = score_slope.transpose(2, 3) @ _by_head(q).float()
        both = torch.stack([k_gradient, weights.transpose(2, 3) @ slope])
        q_gradient = score_slope @ _by_head(k).float()
    return q_gradient.transpose(1, 2).to(q.dtype).contiguous(), both.transpose(2, 3).to(k.dtype).contiguous()


@attend.register_fake
def _make_fake_output(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return q.new_empty(q.shape)


@attend_backward.register_fake
def _make_fake_gradients(out_gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(2, *k.shape)


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, out_gradient: Tensor) -> tuple[Tensor | None, ...]:
    q_gradient, (k_gradient, v_gradient) = attend_backward(out_gradient, *ctx.saved_tensors, ctx.scale)
    return q_gradient, k_gradient, v_gradient, None


attend.register_autograd(_differentiate, setup_context=_save_inputs)
