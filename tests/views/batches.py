"""Twelve small random images, the key of a batch of them, and their views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from vitling.views import BatchKey, Normaliser, Plan, Renderer, ViewBatch, Views
from vitling.views.renderer import FunctionCache

N = 12
PIXELS = torch.randint(0, 256, (N, 3, 20, 20), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
ASPECT = torch.linspace(0.5, 2, N)
NORMALISE = Normaliser((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))


def render(
    plan: Plan, key: BatchKey | None = None, local=range(N), functions: FunctionCache | None = None
) -> list[Views]:
    """Render the views of the positions `local` of a batch, by default of all."""
    view_batch = ViewBatch(plan, key or batch_key(), np.array(local))
    return view_batch.render(PIXELS[view_batch.instances], ASPECT[view_batch.instances], Renderer(NORMALISE, functions))


def batch_key(ids=range(N), **changes) -> BatchKey:
    return replace(BatchKey(seed=0, epoch=2, step=1, ids=np.array(ids), instances=N), **changes)
