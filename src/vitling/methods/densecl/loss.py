"""DenseCL (Wang et al., CVPR 2021): MoCo v2, plus the same task for similar regions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.densecl.settings import DenseCLConfig
from vitling.methods.method import TrainingData
from vitling.methods.moco_v2.loss import MoCoV2
from vitling.objectives.heads import make_projection_mlp, normalise_rows
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.queue import KeyQueue
from vitling.objectives.regions import join_regions, split_regions, take_matches
from vitling.views.plan import Plan


class DenseCL(MoCoV2):
    """The contrastive counterpart of EsViT's region loss (EsViT, Table 5).

    A second head of the same shape projects regions. The positive key of a region of the first view is that of the
    region of the second view with the most similar features before the heads (DenseCL, Sec. 3.3). The negatives are in
    a queue of their own with one key per image, the mean over its regions. The loss is (1 - w) times MoCo's plus w
    times the mean over regions.
    """

    config: DenseCLConfig

    def __init__(self, backbone: Backbone, plan: Plan, config: DenseCLConfig | None = None):
        config = config or DenseCLConfig()
        dense_head = make_projection_mlp(backbone.dim, config.dim)
        super().__init__(backbone, plan, config, dense_head)
        self.dense_head = dense_head
        self.dense_queue = KeyQueue(config.queue, config.dim)
        self.weights = {"contrast": 1 - config.dense_weight, "dense": config.dense_weight}

    def terms(self, query_features: Features, key_features: Features, batch: Batch) -> dict[str, Tensor]:
        grids = (query_features.grid, key_features.grid)
        mine, theirs = (join_regions([split_regions(grid, len(batch.ids))]) for grid in grids)
        with torch.no_grad():
            keys = cast(nn.Module, self.copy.regions)(theirs)
            positives = normalise_rows(take_matches(mine, theirs, keys)).flatten(0, 1)
        queries = normalise_rows(self.dense_head(mine)).flatten(0, 1)
        remember = normalise_rows(keys.float().mean(1))
        dense = self.contrast_with_queue(self.dense_queue, queries, positives, remember, batch)
        return {**super().terms(query_features, key_features, batch), "dense": dense}

    @property
    def queues(self) -> dict[str, KeyQueue]:
        return {**super().queues, "dense queue": self.dense_queue}

    def uniform_loss(self) -> dict[str, float]:
        """Return ln(1 + K) for both terms."""
        both = super().uniform_loss()
        return {**both, "dense": both["contrast"]}


def build(backbone: Backbone, plan: Plan, config: DenseCLConfig, data: TrainingData) -> Objective:
    return DenseCL(backbone, plan, config)
