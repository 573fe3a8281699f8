"""Rows of all processes, in the order of the global batch. In one process they are what it has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def gather_rows(rows: Tensor, counts: bool = True) -> tuple[Tensor, int]:
    """[N, ...] of all processes, with gradients, and where those of this process begin. The rows of a process that only
    stands in (`Batch.counts`) are left out."""
    if not (dist.is_available() and dist.is_initialized()):
        return rows, 0
    lengths = _lengths(len(rows) if counts else 0, rows.device)
    return _Gathered.apply(rows, lengths), sum(lengths[: dist.get_rank()])


def _lengths(own: int, device: torch.device) -> list[int]:
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    lengths[dist.get_rank()] = own
    dist.all_reduce(lengths)
    return lengths.tolist()


class _Gathered(torch.autograd.Function):
    """Every process has a loss of its own, and DDP takes the mean of their gradients: what arrives here is added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths, ctx.given = lengths, rows.shape
        padded = F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, max(0, max(lengths) - len(rows)))).contiguous()
        found = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(found, padded)
        return torch.cat([part[:length] for part, length in zip(found, lengths)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        rank = dist.get_rank()
        first = sum(ctx.lengths[:rank])
        mine = gradient[first : first + ctx.lengths[rank]]
        return (mine if len(mine) else gradient.new_zeros(ctx.given)), None
