"""Spread and rank of features: signs of a collapse that need no labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Spread(NamedTuple):
    """Spread of features.

    `spread`: std per dimension of the normalised features, times sqrt(D), averaged over dimensions; 1 if all directions
    are equally likely, 0 if all images look the same (SimSiam, Chen & He 2021, Sec. 4.1). `cosine`: mean over pairs of
    images.
    """

    spread: float
    effective_rank: float
    cosine: float


@torch.no_grad()
def measure_spread(features: Tensor) -> Spread:
    """Measure the spread of features [N, D] of at least two images, regardless of their lengths."""
    unit = F.normalize(features.cpu().double(), dim=1)  # not every device has float64
    n, dim = unit.shape
    std = unit.std(dim=0, correction=0).mean() * dim**0.5
    cosine = (unit.sum(dim=0).square().sum() - unit.square().sum()) / (n * (n - 1))
    return Spread(float(std), effective_rank(unit), float(cosine))


@torch.no_grad()
def effective_rank(features: Tensor) -> float:
    """Compute exp of the entropy of the normalised singular values.

    It is D for D directions of equal strength, 1 for constant features, and 0 if all are zero (Roy &
    Vetterli 2007, Def. 1; RankMe, Garrido et al. 2023, Eq. 1).
    """
    values = torch.linalg.svdvals(features.cpu().double())
    total = values.sum()
    if not total:
        return 0.0
    share = values / total
    return float(torch.special.entr(share).sum().exp())
