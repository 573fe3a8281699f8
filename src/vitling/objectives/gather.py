"""Gathering rows of all processes with gradients, so that losses can compare all images of a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from vitling.objectives.objective import Batch


class GatheredRows(NamedTuple):
    rows: Tensor  # of all processes, in the order of ranks
    first: int  # index of this process's first row


def gather_batch(rows: Tensor, batch: Batch) -> GatheredRows:
    """Gather rows, equally many per image of the batch. A single process returns its own.

    The loss of a process is the mean over its rows, and DDP averages gradients, weighted by the images of each process.
    So gradients that a row receives from the losses of other processes are simply added, without a factor.
    """
    if not batch.images_per_process:
        return GatheredRows(rows, 0)
    each = len(rows) // len(batch.ids)
    lengths = [each * count for count in batch.images_per_process]
    return GatheredRows(gather_rows(rows, lengths), sum(lengths[: dist.get_rank()]))


def has_own_images(batch: Batch) -> bool:
    """Return whether this process has images in this pass, not a substitute (see `Batch.images_per_process`)."""
    return not batch.images_per_process or batch.images_per_process[dist.get_rank()] > 0


def count_rows(rows: Tensor) -> list[int]:
    """Return the number of rows of each process: the last batch of an epoch may be split unevenly."""
    lengths = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=rows.device)
    lengths[dist.get_rank()] = len(rows)
    dist.all_reduce(lengths)
    return lengths.tolist()


def gather_rows(rows: Tensor, lengths: list[int]) -> Tensor:
    """Gather `lengths` rows of each process. The gradient of a row is the sum over all processes."""
    return _GatherRows.apply(rows, lengths)


class _GatherRows(torch.autograd.Function):
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
