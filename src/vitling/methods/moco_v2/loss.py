"""MoCo v2 (Chen et al. 2020; MoCo: He et al., CVPR 2020): tell the other view of an image from the keys in a queue."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
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
    """The first view asks, the second one, through a copy of the network with constant momentum, is the answer; keys of
    earlier batches are the wrong answers. Not symmetric, as published.

    Settings are those of IDMM's Table 10. The rest is MoCo v2's own: a head of two layers, the hidden one as wide as
    the features; momentum 0.999; no wrong answers from the batch itself.

    A queue that is longer than the data set (2048 keys, 2,040 images) holds older keys of the very image that is asked
    about. `mask_own` leaves them out of the wrong answers; MoCo does not know of them.

    Shuffling batch norm is not here: MoCo shares keys out over GPUs in another order than queries, because batch norm
    over the same images on both sides gives the answer away. Statistics of the whole batch are no remedy: the keys of
    the queue had others. It takes a network with batch norm, a ResNet or a CvT; the rest have nothing to give away.
    """

    capturable_forward = True

    def __init__(
        self,
        backbone: Backbone,
        plan: Plan,
        config: MoCoV2Config | None = None,
        region_head: nn.Module | None = None,
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

    def terms(self, asked: Features, answered: Features, batch: Batch) -> dict[str, Tensor]:
        """Of what the network makes of the first view, and its copy of the second."""
        queries, keys = normalise_rows(self.head(asked.pooled)), normalise_rows(self.copy.head(answered.pooled))
        return {"contrast": self.against(self.queue, queries, keys, keys, batch)}

    def against(self, queue: KeyQueue, queries: Tensor, keys: Tensor, remembered: Tensor, batch: Batch) -> Tensor:
        """Queries and their right keys, several of an image one after the other, and the queue's as the wrong ones;
        what is `remembered` of each image comes into the queue."""
        own = (batch.ids[:, None] == queue.ids) if self.config.mask_own else None
        if own is not None:
            own = own.repeat_interleave(len(queries) // len(own), dim=0)
        loss = contrast(queries, keys, queue.keys, self.config.temperature, own)
        queue.add(gather_batch(remembered, batch).rows, gather_batch(batch.ids, batch).rows)
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

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.copy.backbone]

    def uniform_loss(self) -> dict[str, float]:
        """ln(1 + K)."""
        return {"contrast": math.log(1 + self.config.queue)}

    def health(self) -> dict[str, float]:
        return {name: queue.health() for name, queue in self.queues.items()}


def contrast(queries: Tensor, keys: Tensor, queue: Tensor, temperature: float, masked: Tensor | None = None) -> Tensor:
    """-log exp(q k+ / T) / (exp(q k+ / T) + sum over the queue of exp(q k / T)), mean over queries (MoCo, Eq. 1). All
    are float32 and of unit length; keys that are `masked` [B, K] are left out of the sum."""
    with torch.autocast(queries.device.type, enabled=False):
        right = (queries * keys).sum(1, keepdim=True)
        wrong = queries @ queue.T
    if masked is not None:
        wrong = wrong.masked_fill(masked, -torch.inf)
    answers = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    return F.cross_entropy(torch.cat((right, wrong), dim=1) / temperature, answers)
