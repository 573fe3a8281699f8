"""Heads between the features and a loss, that several methods share. They are dropped after pre-training."""

from __future__ import annotations

from itertools import pairwise

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.objectives.gather import count_rows, gather_rows


def projection_mlp(dim: int, out: int) -> nn.Module:
    """SimCLR's (Sec. 2.1) and MoCo v2's: two layers with ReLU between them, the hidden one as wide as the features, and
    no norm."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))


def normed_mlp(*widths: int, last_norm: bool, biases: bool) -> nn.Sequential:
    """Linear, batch norm, ReLU, and so on; the last layer has no bias, no ReLU and, with `last_norm`, a batch norm
    without weights behind it. MoCo v3 has that and no biases at all; BYOL has biases in the hidden layers."""
    layers: list[nn.Module] = []
    for dim, hidden in pairwise(widths[:-1]):
        layers += [nn.Linear(dim, hidden, bias=biases), BatchNorm(hidden), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=False))
    return nn.Sequential(*layers, BatchNorm(widths[-1], affine=False)) if last_norm else nn.Sequential(*layers)


class BatchNorm(nn.BatchNorm1d):
    """Over the rows of all processes. On GPUs the loop makes it torch's SyncBatchNorm, which CPUs do not have."""

    def forward(self, rows: Tensor) -> Tensor:
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return super().forward(rows)
        lengths = count_rows(rows)
        first = sum(lengths[: dist.get_rank()])
        return super().forward(gather_rows(rows, lengths))[first : first + len(rows)]


def normalise_rows(rows: Tensor) -> Tensor:
    """Of length 1, in float32 whatever the network computes in."""
    return F.normalize(rows.float(), dim=-1)
