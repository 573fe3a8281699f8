"""Familiarity of an image: whether it is like the training images, by three signals (docs/trust.md).

- The distance of the network's last map, as the mean and the standard deviation of each channel over the positions.
  Unlike the pooled features that the head sees, they also tell scenes from objects.
- The distance of the image itself, as its colours and its contrasts at several scales. A network that learned to ignore
  them would not notice images of another camera, or enlarged ones.
- The entropy of the predicted probabilities, if each image has one class: the network cannot decide.

Distances are Mahalanobis distances from a normal distribution whose covariance has a few free directions and one
variance for all others (probabilistic PCA, Tipping and Bishop 1999), so that it can be estimated from few images and
takes little space. Held-out images turn each signal into a p-value, the share of them that are at least as strange, and
Fisher's method adds up the logarithms of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.data.store import Store
from vitling.errors import RunAborted
from vitling.evaluation.config import rank_for
from vitling.evaluation.features import eval_mode, iterate_views
from vitling.keys import make_rng

FALSE_ALARMS = 0.05  # fraction of images like the training images that are called unfamiliar
DIRECTIONS = 32  # chosen on a small network for flowers, against CamVid and CIFAR (docs/trust.md)
SHRINKAGE = 0.01  # of each variance towards their mean
SAMPLE = 10_000  # training images at most
DISTANCES = 2  # of an image: map, pixels
MAP_STATISTICS = 2  # features of each channel of the map: its mean and its standard deviation
SMALLEST_SCALE = 8  # pixels of the smallest side whose contrasts are measured
ROUNDING = 1e-5  # of a feature's mean; smaller deviations may be those of another device
TINY = 1e-12  # keeps features that never vary from dividing by 0


class ImageSummary(NamedTuple):
    """Statistics of N images: of their maps [N, 2 C] and of their pixels [N, P]."""

    maps: Tensor
    pixels: Tensor


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution of features [D] that are standardised first."""

    mean: Tensor  # [D]
    scale: Tensor  # [D], standard deviations
    directions: Tensor  # [r, D], orthonormal
    variances: Tensor  # [r + 1]: along each direction, and in each of the others

    def measure(self, features: Tensor) -> Tensor:
        """Compute the squared Mahalanobis distance per feature [N], of features [N, D]."""
        centred = (features.float().cpu() - self.mean) / self.scale
        along = centred @ self.directions.T
        others = (centred.square().sum(dim=1) - along.square().sum(dim=1)).clamp(min=0)
        return ((along.square() / self.variances[:-1]).sum(dim=1) + others / self.variances[-1]) / len(self.mean)


@dataclass(frozen=True)
class Familiarity:
    """Distributions of training images' features, and signals of held-out images to compare with."""

    maps: Gaussian
    pixels: Gaussian
    held_out: Tensor = field(default_factory=lambda: torch.zeros(DISTANCES, 0))  # [signals, n], each row sorted
    threshold: float = float("inf")  # largest strangeness that counts as familiar

    def measure_distances(self, features: ImageSummary) -> Tensor:
        """Compute the distances of maps and pixels [N, 2]."""
        return torch.stack([self.maps.measure(features.maps), self.pixels.measure(features.pixels)], dim=1)

    def measure_signals(self, features: ImageSummary, logits: Tensor) -> Tensor:
        """Compute all signals [N, signals]; `logits` are calibrated, and not used if images may have several labels."""
        has_entropy = len(self.held_out) > DISTANCES
        return make_signals(self.measure_distances(features), logits if has_entropy else None)

    def combine(self, signals: Tensor, are_held_out: bool = False) -> Tensor:
        """Sum -log p over the signals: [N, signals] to [N].

        p is the share of images that are at least as strange, among the held-out images and the image itself. With
        `are_held_out`, the images are held-out ones, and none is counted twice.
        """
        count, itself = self.held_out.shape[1], 0 if are_held_out else 1
        lower = torch.searchsorted(self.held_out, signals.T.contiguous().to(self.held_out.dtype))
        return -((count - lower + itself) / (count + itself)).log().sum(dim=0)

    def find_unfamiliar(self, features: ImageSummary, logits: Tensor) -> Tensor:
        """Return bool [N]: the images that are stranger than the threshold."""
        return self.combine(self.measure_signals(features, logits)) > self.threshold


def make_signals(distances: Tensor, logits: Tensor | None) -> Tensor:
    """Append the entropy of the probabilities to distances [N, 2], if there are logits."""
    if logits is None:
        return distances
    probabilities = logits.float().cpu().softmax(dim=1)
    return torch.cat([distances, torch.special.entr(probabilities).sum(dim=1, keepdim=True)], dim=1)


def fit_familiarity(features: ImageSummary) -> Familiarity:
    """Estimate the distributions of training images' features; `calibrate_familiarity` adds the rest."""
    return Familiarity(fit_gaussian(features.maps), fit_gaussian(features.pixels))


def fit_gaussian(features: Tensor) -> Gaussian:
    """Estimate the distribution of features [N, D]."""
    features = features.double().cpu()
    if not features.isfinite().all():
        raise RunAborted("The network's features are not finite. Train again with a lower --optim.lr.")
    mean = features.mean(dim=0)
    scale = torch.maximum(features.std(dim=0, correction=0), ROUNDING * mean.abs() + TINY)
    covariance = torch.cov(((features - mean) / scale).T, correction=0).reshape(len(mean), len(mean))
    spectrum, directions = torch.linalg.eigh(covariance)  # the largest last
    spectrum, directions = spectrum.clamp(min=0).flip(0), directions.T.flip(0)
    kept = max(0, min(DIRECTIONS, len(features) // 4, len(mean) - 1))
    variances = torch.cat([spectrum[:kept], spectrum[kept:].mean()[None]])
    variances = (1 - SHRINKAGE) * variances + SHRINKAGE * spectrum.mean() + TINY
    return Gaussian(mean.float(), scale.float(), directions[:kept].float(), variances.float())


def calibrate_familiarity(familiarity: Familiarity, signals: Tensor) -> Familiarity:
    """Compare with the signals [n, signals] of held-out images, and choose the threshold."""
    held_out = signals.T.float().sort(dim=1).values.contiguous()
    familiarity = replace(familiarity, held_out=held_out)
    return replace(familiarity, threshold=choose_threshold(familiarity.combine(signals, are_held_out=True)))


def choose_threshold(values: Tensor) -> float:
    """Return the ceil((n + 1) (1 - FALSE_ALARMS))-th smallest of n values, at most the largest."""
    rank = rank_for(1 - FALSE_ALARMS, len(values))
    return float(values.sort().values[min(rank, len(values)) - 1])


# --- features ---------------------------------------------------------------------------------------------------------


def summarise_images(images: Tensor, grid: Tensor) -> ImageSummary:
    """Describe normalised images [B, channels, H, W] and their last maps [B, C, h, w], on the host."""
    return ImageSummary(summarise_map(grid).cpu(), summarise_pixels(images).cpu())


def summarise_map(grid: Tensor) -> Tensor:
    """Compute the mean and the standard deviation of each channel over the positions: [B, C, h, w] to [B, 2 C]."""
    positions = grid.float().flatten(2)
    return torch.cat([positions.mean(dim=2), positions.std(dim=2, correction=0)], dim=1)


def summarise_pixels(images: Tensor) -> Tensor:
    """Compute the mean, the log of the standard deviation and the log of the contrast at each scale, per channel.

    The contrast at a scale is the root mean square of what is lost if the image is halved (a Laplacian pyramid).
    """
    images = images.float()
    found = [images.mean(dim=(2, 3)), _log_root(images.var(dim=(2, 3), correction=0))]
    for _ in range(_count_scales(min(images.shape[2:]))):
        halved = F.avg_pool2d(images, 2)
        restored = F.interpolate(halved, size=images.shape[2:], mode="bilinear", align_corners=False)
        found.append(_log_root((images - restored).square().mean(dim=(2, 3))))
        images = halved
    return torch.cat(found, dim=1)


def count_pixel_features(size: int, channels: int) -> int:
    return channels * (2 + _count_scales(size))


def _count_scales(side: int) -> int:
    scales = 0
    while side >= SMALLEST_SCALE:
        scales, side = scales + 1, side // 2
    return scales


def _log_root(squares: Tensor) -> Tensor:
    return (squares + 1e-4).log() / 2


@torch.inference_mode()
def compute_features(
    backbone: Backbone, store: Store, size: int, crop_fraction: float, max_images: int = SAMPLE
) -> ImageSummary:
    """Compute the features of all images, or of a sample if there are more than `max_images`."""
    ids = np.arange(len(store))
    if len(ids) > max_images:
        ids = ids[np.sort(make_rng("familiarity", 0).permutation(len(ids))[:max_images])]
    with eval_mode(backbone):
        views = iterate_views(store, size, crop_fraction, ids)
        return _join([summarise_images(images, backbone.forward(images).grid) for images in views])


@torch.inference_mode()
def compute_logits_and_features(
    backbone: Backbone, head: nn.Module, store: Store, size: int, crop_fraction: float
) -> tuple[Tensor, ImageSummary]:
    """Compute the logits and the features of all images in one pass, on the host."""
    logits, features = [], []
    with eval_mode(backbone):
        for images in iterate_views(store, size, crop_fraction):
            found = backbone.forward(images)
            logits.append(head(found.pooled).float().cpu())
            features.append(summarise_images(images, found.grid))
    return torch.cat(logits), _join(features)


def _join(batches: list[ImageSummary]) -> ImageSummary:
    return ImageSummary(*(torch.cat(parts) for parts in zip(*batches)))
