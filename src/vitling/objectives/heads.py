"""Heads between the features and a loss, that several methods share."""

from __future__ import annotations

from torch import nn


def projection_mlp(dim: int, out: int) -> nn.Module:
    """SimCLR's (Sec. 2.1): two layers with ReLU between them, the hidden one as wide as the features, and no norm."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))
