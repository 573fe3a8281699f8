"""Accuracy of EsViT's matching by similarity: how often it pairs regions that show the same place in two views."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitling.data.store import Store
from vitling.errors import UserError
from vitling.evaluation.features import eval_mode
from vitling.evaluation.model import Model
from vitling.objectives.distillation import count_global_groups
from vitling.objectives.momentum import join_pixels
from vitling.objectives.places import locate_regions, match_by_place
from vitling.objectives.regions import match_by_features, split_regions
from vitling.views.batch import render_batch
from vitling.views.plan import Plan
from vitling.views.renderer import Normaliser

BATCH = 64


@dataclass(frozen=True)
class Matching:
    right: float  # fraction of the regions visible in both views whose most similar region shows the same place
    chance: float  # the same for a random region
    images: int


@torch.inference_mode()
def measure_matching(model: Model, store: Store, plan: Plan, global_views: int, seed: int = 0) -> Matching:
    """Match EsViT's training views of each image once, weighted as in `match place`.

    `plan` has the views with their places, the first `global_views` of them global. A region has up to four regions
    around its place in the other view, all of which count as right.
    """
    normalise = Normaliser(tuple(model.meta.mean), tuple(model.meta.std))
    sums, wide = torch.zeros(3, device=model.device), count_global_groups(plan, global_views)
    with eval_mode(model.backbone):
        for start in range(0, len(store), BATCH):
            ids = np.arange(start, min(start + BATCH, len(store)))
            views = render_batch(plan, store, ids, normalise, seed)
            pixels = [join_pixels(views[:wide]), *(view.pixels for view in views[wide:])]
            grids = [model.backbone(some).grid.float() for some in pixels]
            places = match_by_place(locate_regions(model.backbone, views, wide), len(ids))
            sums += _sum_matches(grids, places, len(ids), global_views)
    right, chance, mass = sums.tolist()
    if not mass:
        raise UserError("No two views of these images overlap, so there is nothing to match.")
    return Matching(right / mass, chance / mass, len(store))


def _sum_matches(grids: list[Tensor], places: Tensor, images: int, teachers: int) -> Tensor:
    """Sum the weights of regions that are matched correctly, that would be by chance, and of all."""
    regions = [split_regions(grid, images) for grid in grids]
    alike = match_by_features(regions, regions[0]).unflatten(2, (teachers, -1)) > 0
    pairs = places.unflatten(2, (teachers, -1))
    mass, around = pairs.sum(3), pairs > 0
    kinds = (around & alike).any(3), around.float().mean(3), torch.ones_like(mass)
    return torch.stack([(mass * kind).sum() for kind in kinds])
