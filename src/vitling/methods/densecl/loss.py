"""DenseCL (Wang et al., CVPR 2021): MoCo v2, and the same task for regions that look alike."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.densecl.settings import DenseCLConfig
from vitling.methods.moco_v2.loss import MoCoV2
from vitling.objectives.heads import make_projection_mlp, normalise_rows
from vitling.objectives.objective import Batch
from vitling.objectives.queue import KeyQueue
from vitling.objectives.regions import join_regions, split_regions, take_matches
from vitling.views.plan import Plan


class DenseCL(MoCoV2):
    """The contrastive counterpart of EsViT's region loss (its Table 5). A second head, of the same shape, makes a
    vector of each region. The right answer to a region of the first view is that of the region of the second view whose
    features, before the heads, are most alike (its Sec. 3.3); the wrong ones are in a queue of their own, one for each
    image: the mean over its regions. The loss is (1 - w) times MoCo's and w times that of regions, mean over regions.
    """

    config: DenseCLConfig

    def __init__(self, backbone: Backbone, plan: Plan, config: DenseCLConfig | None = None):
        config = config or DenseCLConfig()
        dense_head = make_projection_mlp(backbone.dim, config.dim)
        super().__init__(backbone, plan, config, dense_head)
        self.dense_head = dense_head
        self.dense_queue = KeyQueue(config.queue, config.dim)
        self.weights = {"contrast": 1 - config.dense_weight, "dense": config.dense_weight}

    def terms(self, asked: Features, answered: Features, batch: Batch) -> dict[str, Tensor]:
        mine, theirs = (join_regions([split_regions(view.grid, len(batch.ids))]) for view in (asked, answered))
        with torch.no_grad():
            keys = cast(nn.Module, self.copy.regions)(theirs)
            right = normalise_rows(take_matches(mine, theirs, keys)).flatten(0, 1)
        queries = normalise_rows(self.dense_head(mine)).flatten(0, 1)
        dense = self.against(self.dense_queue, queries, right, normalise_rows(keys.float().mean(1)), batch)
        return {**super().terms(asked, answered, batch), "dense": dense}

    @property
    def queues(self) -> dict[str, KeyQueue]:
        return {**super().queues, "dense queue": self.dense_queue}

    def uniform_loss(self) -> dict[str, float]:
        """ln(1 + K) of both."""
        both = super().uniform_loss()
        return {**both, "dense": both["contrast"]}
