"""Heads between features and loss that several methods share. They are dropped after pre-training."""

from __future__ import annotations

from itertools import pairwise

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.objectives.gather import count_rows, gather_rows


def make_projection_mlp(dim: int, out: int) -> nn.Module:
    """Make the head of SimCLR (Sec. 2.1) and MoCo v2: two layers with a ReLU between them, no norm, and a hidden layer
    as wide as the features."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))


def make_normed_mlp(*widths: int, last_norm: bool, biases: bool) -> nn.Sequential:
    """Make a head of linear layers with batch norm and ReLU. The last layer has no bias and no ReLU, and with
    `last_norm` it is followed by a batch norm without weights. MoCo v3 has that and no biases; BYOL has biases in
    hidden layers."""
    layers: list[nn.Module] = []
    for dim, hidden in pairwise(widths[:-1]):
        layers += [nn.Linear(dim, hidden, bias=biases), BatchNorm(hidden), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=False))
    return nn.Sequential(*layers, BatchNorm(widths[-1], affine=False)) if last_norm else nn.Sequential(*layers)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the rows of all processes. On GPUs the loop replaces it by SyncBatchNorm, which CPUs lack."""

    def forward(self, rows: Tensor) -> Tensor:
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return super().forward(rows)
        lengths = count_rows(rows)
        first = sum(lengths[: dist.get_rank()])
        return super().forward(gather_rows(rows, lengths))[first : first + len(rows)]


def normalise_rows(rows: Tensor) -> Tensor:
    """Normalise rows to length 1, in float32 whatever the network's precision."""
    return F.normalize(rows.float(), dim=-1)
