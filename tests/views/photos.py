"""Photographs that scikit-learn ships, as uint8 arrays."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

PHOTOS = [np.ascontiguousarray(photo[:420, 100:520]) for photo in load_sample_images().images]


def as_batch(photo: np.ndarray) -> Tensor:
    return torch.from_numpy(photo.copy()).permute(2, 0, 1)[None].float()


def as_array(batch: Tensor) -> np.ndarray:
    return batch[0].permute(1, 2, 0).numpy()


def errors(ours: Tensor, theirs: Image.Image | np.ndarray) -> tuple[float, float]:
    """Return the mean and the 99.9th percentile of the absolute difference, in 1/255."""
    difference = np.abs(as_array(ours) - np.asarray(theirs).astype(float))
    return float(difference.mean()), float(np.quantile(difference, 0.999))


def psnr(ours: Tensor, theirs: Image.Image | np.ndarray) -> float:
    square = np.mean((as_array(ours) - np.asarray(theirs).astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(square, 1e-9)))
