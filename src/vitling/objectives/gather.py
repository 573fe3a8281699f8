"""Rows of all processes, with their gradients: a loss that compares images compares those of the whole batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from vitling.objectives.objective import Batch


class GatheredRows(NamedTuple):
    rows: Tensor  # of all processes, one behind the other; the order within a process is kept
    first: int  # which of them is this process's first


def gather_batch(rows: Tensor, batch: Batch) -> GatheredRows:
    """`rows` has the same number for each of the batch's images. In one process they are all there is.

    Each process has a loss of its own, the mean over its rows, and DDP takes the mean of the gradients, weighted by the
    images of each. So what a row's gradient has from the losses of other processes is added: no factor is left over.
    """
    if not batch.held:
        return GatheredRows(rows, 0)
    each = len(rows) // len(batch.ids)
    lengths = [each * count for count in batch.held]
    return GatheredRows(gather_rows(rows, lengths), sum(lengths[: dist.get_rank()]))


def has_own_images(batch: Batch) -> bool:
    """Whether this process has images of the batch, and does not only keep the others company."""
    return not batch.held or batch.held[dist.get_rank()] > 0


def count_rows(rows: Tensor) -> list[int]:
    """How many rows each process has: the last batch of an epoch may not be shared out evenly."""
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=rows.device)
    lengths[dist.get_rank()] = len(rows)
    dist.all_reduce(lengths)
    return lengths.tolist()


def gather_rows(rows: Tensor, lengths: list[int]) -> Tensor:
    """The rows of all processes, `lengths` of each. A gradient is the sum of what all processes have for a row."""
    return _Gathered.apply(rows, lengths)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths, ctx.shape = lengths, rows.shape
        own, longest = rows[: lengths[dist.get_rank()]], max(lengths)
        padded = F.pad(own, (*(0, 0) * (rows.ndim - 1), 0, longest - len(own))).contiguous()
        found = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(found, padded)
        return torch.cat([part[:length] for part, length in zip(found, lengths)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        rank = dist.get_rank()
        first, own = sum(ctx.lengths[:rank]), total.new_zeros(ctx.shape)
        own[: ctx.lengths[rank]] = total[first : first + ctx.lengths[rank]]
        return own, None
