"""Familiarity of an image: how far its features are from those of the training images.

The features are the mean and the standard deviation of the last map over its positions: unlike the pooled features that
the head sees, they also tell scenes from objects (docs/trust.md). Their distribution is a normal one whose covariance
has a few free directions and one variance for all others (probabilistic PCA, Tipping and Bishop 1999), so that it can
be estimated from few images and takes little space. The distance is the Mahalanobis distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.data.store import Store
from vitling.errors import RunAborted
from vitling.evaluation.config import rank_for
from vitling.evaluation.features import eval_mode, iterate_views
from vitling.keys import make_rng

FALSE_ALARMS = 0.05  # fraction of images like the training images that are called unfamiliar
DIRECTIONS = 16  # of 4 to 110 the best for flowers against CamVid and CIFAR (docs/trust.md)
SAMPLE = 10_000  # training images at most
MAP_STATISTICS = 2  # features of each channel of the map: its mean and its standard deviation
TINY = 1e-12  # keeps features that never vary from dividing by 0


@dataclass(frozen=True)
class Familiarity:
    """The distribution of training images' features [D], and the largest distance that counts as familiar."""

    mean: Tensor  # [D]
    directions: Tensor  # [r, D], orthonormal
    variances: Tensor  # [r + 1]: along each direction, and in each of the others
    threshold: float = float("inf")

    def measure(self, features: Tensor) -> Tensor:
        """Compute the squared Mahalanobis distance per feature [N], of features [N, D]."""
        centred = features.float().cpu() - self.mean
        along = centred @ self.directions.T
        others = (centred.square().sum(dim=1) - along.square().sum(dim=1)).clamp(min=0)
        return ((along.square() / self.variances[:-1]).sum(dim=1) + others / self.variances[-1]) / len(self.mean)

    def find_unfamiliar(self, features: Tensor) -> Tensor:
        """Return bool [N]: the images that are farther away than the threshold."""
        return self.measure(features) > self.threshold


def fit_familiarity(features: Tensor) -> Familiarity:
    """Estimate the distribution of training images' features [N, D]; the threshold is set with `choose_threshold`."""
    features = features.double().cpu()
    if not features.isfinite().all():
        raise RunAborted("The network's features are not finite. Train again with a lower --optim.lr.")
    mean = features.mean(dim=0)
    covariance = torch.cov(features.T, correction=0).reshape(len(mean), len(mean))
    spectrum, directions = torch.linalg.eigh(covariance)  # the largest last
    spectrum, directions = spectrum.clamp(min=0).flip(0), directions.T.flip(0)
    kept = max(0, min(DIRECTIONS, len(features) // 4, len(mean) - 1))
    rest = spectrum[kept:].sum() / max(1, len(mean) - kept)
    variances = torch.cat([spectrum[:kept], rest[None]]) + TINY
    return Familiarity(mean.float(), directions[:kept].float(), variances.float())


def choose_threshold(distances: Tensor, false_alarms: float = FALSE_ALARMS) -> float:
    """Return the ceil((n + 1) (1 - rate))-th smallest of n distances, at most the largest."""
    rank = rank_for(1 - false_alarms, len(distances))
    return float(distances.sort().values[min(rank, len(distances)) - 1])


def summarise_map(grid: Tensor) -> Tensor:
    """Compute the mean and the standard deviation of each channel over the positions: [B, C, h, w] to [B, 2 C]."""
    positions = grid.float().flatten(2)
    return torch.cat([positions.mean(dim=2), positions.std(dim=2, correction=0)], dim=1)


@torch.inference_mode()
def compute_map_features(
    backbone: Backbone,
    store: Store,
    size: int,
    crop_fraction: float,
    ids: np.ndarray | None = None,
    most: int = SAMPLE,
) -> Tensor:
    """Compute `summarise_map` for all images, or for those with `ids`, on the host; of more than `most`, a sample."""
    ids = np.arange(len(store)) if ids is None else ids
    if len(ids) > most:
        ids = ids[np.sort(make_rng("familiarity", 0).permutation(len(ids))[:most])]
    with eval_mode(backbone):
        views = iterate_views(store, size, crop_fraction, ids)
        return torch.cat([summarise_map(backbone.forward(images).grid).cpu() for images in views])


@torch.inference_mode()
def compute_logits_and_features(
    backbone: Backbone, head: nn.Module, store: Store, size: int, crop_fraction: float
) -> tuple[Tensor, Tensor]:
    """Compute the logits and `summarise_map` of all images in one pass, on the host."""
    logits, features = [], []
    with eval_mode(backbone):
        for images in iterate_views(store, size, crop_fraction):
            found = backbone.forward(images)
            logits.append(head(found.pooled).float().cpu())
            features.append(summarise_map(found.grid).cpu())
    return torch.cat(logits), torch.cat(features)
