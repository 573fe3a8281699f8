"""The small networks between the features and a loss. They are dropped after pre-training."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from vitling.objectives.gathering import gather_rows


def relu_mlp(dim: int, hidden: int, out: int) -> nn.Sequential:
    """Two layers without norms (MoCo v2)."""
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))


def normed_mlp(*widths: int, last_norm: bool, biases: bool) -> nn.Sequential:
    """Linear, batch norm, ReLU, and so on; the last layer has no bias, no ReLU and, with `last_norm`, a batch norm
    without weights behind it. MoCo v3 has that and no biases at all; BYOL has biases in the hidden layers."""
    layers: list[nn.Module] = []
    for dim, hidden in pairwise(widths[:-1]):
        layers += [nn.Linear(dim, hidden, bias=biases), BatchNorm(hidden), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=False))
    return nn.Sequential(*layers, BatchNorm(widths[-1], affine=False)) if last_norm else nn.Sequential(*layers)


def unit(rows: Tensor) -> Tensor:
    """Of length 1, in float32 whatever the network computes in."""
    return F.normalize(rows.float(), dim=-1)


class BatchNorm(nn.BatchNorm1d):
    """Over the rows of all processes. On GPUs the loop makes it torch's SyncBatchNorm, which CPUs do not have."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training:
            return super().forward(rows)
        everyone, first = gather_rows(rows)
        return super().forward(everyone)[first : first + len(rows)]
