"""How much of the space features fill: numbers that tell a collapse where there are no labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Spread(NamedTuple):
    """`spread`: the deviation of a dimension of the normalised features, times sqrt(D), the mean over dimensions: 1 if
    all directions are as likely, 0 if all images look the same (SimSiam, Chen & He 2021, Sec. 4.1).
    `effective_rank`: see below. `cosine`: the mean over pairs of images."""

    spread: float
    effective_rank: float
    cosine: float


@torch.no_grad()
def measure_spread(features: Tensor) -> Spread:
    """Of features [N, D], two images at least. Their lengths do not count."""
    unit = F.normalize(features.cpu().double(), dim=1)  # a few hundred rows, and not every device has doubles
    n, dim = unit.shape
    deviation = unit.std(dim=0, correction=0).mean() * dim**0.5
    cosine = (unit.sum(dim=0).square().sum() - unit.square().sum()) / (n * (n - 1))
    return Spread(float(deviation), effective_rank(unit), float(cosine))


@torch.no_grad()
def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the singular values over their sum (Roy & Vetterli 2007, Def. 1; RankMe, Garrido et al.
    2023, Eq. 1): D for D orthogonal directions of equal strength, 1 for a constant; 0 if all is zero."""
    values = torch.linalg.svdvals(features.cpu().double())
    total = values.sum()
    if not total:
        return 0.0
    share = values / total
    return float(torch.special.entr(share).sum().exp())
