"""Pooled features of a split, in evaluation views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.data.store import Store
from vitling.views.renderer import eval_view


@torch.inference_mode()
def compute_pooled_features(
    backbone: Backbone, store: Store, size: int, crop_fraction: float, ids: np.ndarray | None = None, batch: int = 256
) -> Tensor:
    """Compute pooled features [N, D] of all images, or of those with `ids`, in order, on the store's device.

    Bypasses torch.compile, whose graphs are for the training batch.
    """
    with eval_mode(backbone):
        views = iterate_views(store, size, crop_fraction, ids, batch)
        return torch.cat([backbone.forward(images).pooled.float() for images in views])


def iterate_views(
    store: Store, size: int, crop_fraction: float, ids: np.ndarray | None = None, batch: int = 256
) -> Iterator[Tensor]:
    """Yield normalised evaluation views of all images, or of those with `ids`, in batches."""
    ids = np.arange(len(store)) if ids is None else ids
    for start in range(0, len(ids), batch):
        yield eval_view(*store.fetch(ids[start : start + batch]), size, crop_fraction, store.mean, store.std)


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode within the block."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)
