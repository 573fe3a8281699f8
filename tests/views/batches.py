"""Twelve small random images and the key of a batch of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from vitling.views import BatchKey, Normaliser

N = 12
PIXELS = torch.randint(0, 256, (N, 3, 20, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
ASPECT = torch.linspace(0.5, 2, N)
NORMALISE = Normaliser((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))


def batch_key(ids=range(N), **changes) -> BatchKey:
    return replace(BatchKey(seed=0, epoch=2, step=1, ids=np.array(ids), instances=N), **changes)
