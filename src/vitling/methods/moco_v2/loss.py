"""MoCo v2 (Chen et al. 2020; MoCo: He et al., CVPR 2020): find the other view of an image in a queue of keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.method import TrainingData
from vitling.methods.moco_v2.settings import MoCoV2Config
from vitling.objectives.gather import gather_batch
from vitling.objectives.heads import make_projection_mlp, normalise_rows
from vitling.objectives.momentum import MomentumCopy, join_pixels
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.objectives.queue import KeyQueue
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class MoCoV2(Objective):
    """First views are queries; second views, encoded by a copy with constant momentum, are their positive keys; keys of
    earlier batches are the negatives. Not symmetric, as published.

    Settings are those of IDMM's Table 10. The rest is MoCo v2's: a head of two layers, the hidden one as wide as the
    features; momentum 0.999; no negatives from the batch itself.

    A queue that is longer than the dataset (2048 keys, 2,040 images) holds older keys of the query's own image.
    `mask_own` removes them from the negatives; MoCo does not.

    Shuffling batch norm is not implemented. MoCo distributes keys over GPUs in another order than queries, because
    statistics over the same images on both sides reveal the positive key. Statistics of the whole batch do not help, as
    the keys in the queue had others. Only networks with batch norm are affected, such as ResNet and CvT.
    """

    capturable_forward = True

    def __init__(
        self, backbone: Backbone, plan: Plan, config: MoCoV2Config | None = None, region_head: nn.Module | None = None
    ):
        super().__init__(backbone, plan)
        self.config = config or MoCoV2Config()
        check_ranges(self.config)
        self.head = make_projection_mlp(backbone.dim, self.config.dim)
        self.copy = MomentumCopy(backbone, self.head, region_head)
        self.queue = KeyQueue(self.config.queue, self.config.dim)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        first, second = join_pixels(views).chunk(2)
        features = self.features(first)
        terms = self.terms(features, self.copy.features(second), batch)
        return {**terms, **self.auxiliary_terms(features, batch, progress)}

    def terms(self, query_features: Features, key_features: Features, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms from the features of the first view, and those of the second by the copy."""
        queries = normalise_rows(self.head(query_features.pooled))
        keys = normalise_rows(self.copy.head(key_features.pooled))
        return {"contrast": self.contrast_with_queue(self.queue, queries, keys, keys, batch)}

    def contrast_with_queue(
        self, queue: KeyQueue, queries: Tensor, keys: Tensor, remember: Tensor, batch: Batch
    ) -> Tensor:
        """Contrast queries and their positive keys with the queue, then add each image's key in `remember` to it.
        Several queries of an image follow each other."""
        own = None
        if self.config.mask_own:
            own = batch.ids.repeat_interleave(len(queries) // len(batch.ids))[:, None] == queue.ids
        loss = contrast(queries, keys, queue.keys, self.config.temperature, own)
        queue.add(gather_batch(remember, batch).rows, gather_batch(batch.ids, batch).rows)
        return loss

    @property
    def queues(self) -> dict[str, KeyQueue]:
        return {"queue": self.queue}

    def before_step(self, progress: Progress) -> None:
        for queue in self.queues.values():
            queue.begin()

    def after_step(self, progress: Progress) -> None:
        for queue in self.queues.values():
            queue.end()
        self.copy.follow(self.config.momentum)

    def uniform_loss(self) -> dict[str, float]:
        """Return ln(1 + K) for K keys in the queue."""
        return {"contrast": math.log(1 + self.config.queue)}

    def health(self) -> dict[str, float]:
        return {name: queue.health() for name, queue in self.queues.items()}


def contrast(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float, masked: Tensor | None = None) -> Tensor:
    """Average -log exp(q k+ / T) / (exp(q k+ / T) + sum over the queue of exp(q k / T)) over queries (MoCo, Eq. 1).

    All vectors are float32 and of unit length; `masked` keys [B, K] are left out of the sum.
    """
    with torch.autocast(queries.device.type, enabled=False):
        positive = (queries * keys).sum(1, keepdim=True)
        negatives = queries @ queue.T
    if masked is not None:
        negatives = negatives.masked_fill(masked, -torch.inf)
    first = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    return F.cross_entropy(torch.cat((positive, negatives), dim=1) / temperature, first)


def build(backbone: Backbone, plan: Plan, config: MoCoV2Config, data: TrainingData) -> Objective:
    return MoCoV2(backbone, plan, config)
