"""MoCo v3 (Chen, Xie and He, ICCV 2021): tell the other view of an image from the other images of the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.objectives.config import MoCoV3Config
from vitling.objectives.gathering import gather_rows
from vitling.objectives.heads import normed_mlp, unit
from vitling.objectives.momentum import MomentumCopy, by_view, pixels_of, rising
from vitling.objectives.objective import Batch, Objective
from vitling.views.config import Plan
from vitling.views.easel import Views


class MoCoV3(Objective):
    """Both views ask and both answer; the answers come from a copy of the network whose momentum rises to 1.

    Settings are those of IDMM's Table 10 ("dim" is the width of queries and keys). The rest is MoCo v3's own for ViTs:
    a projector of three layers and a predictor of two, 4096 wide, with batch norm; momentum 0.99; no queue; the patch
    projection of a plain ViT stays as it was drawn (`frozen_patches`), which its authors found to be more stable.
    Positions and the start of the weights are those of the network at hand, so that all methods are compared on one.

    Both views go through the network together: batch norm in a ResNet sees both, that in the heads one at a time.
    """

    def __init__(self, backbone: Backbone, plan: Plan, config: MoCoV3Config | None = None):
        super().__init__(backbone, plan)
        self.config = config or MoCoV3Config()
        self.config.check()
        if self.config.frozen_patches:
            freeze_patches(backbone)
        hidden, dim = self.config.hidden, self.config.dim
        self.projector = normed_mlp(backbone.dim, hidden, hidden, dim, last_norm=True, biases=False)
        self.predictor = normed_mlp(dim, hidden, dim, last_norm=True, biases=False)
        self.copy = MomentumCopy(backbone, self.projector)
        self.largest = 1  # batch so far

    def forward(self, views: list[Views], batch: Batch, progress: Any) -> dict[str, Tensor]:
        pixels = pixels_of(views)
        features = self.features(pixels)
        queries = unit(by_view(self._predict, features.pooled, 2))
        keys = unit(self.copy(pixels, views=2))
        everyones, first = gather_rows(torch.cat(keys.chunk(2), dim=1), batch.counts)
        self.largest = max(self.largest, len(everyones))
        loss = symmetric(queries.chunk(2), everyones.chunk(2, dim=1), first, self.config.temperature)
        return {"contrast": loss, **self.auxiliary_terms(features, batch, progress)}

    def _predict(self, pooled: Tensor) -> Tensor:
        return self.predictor(self.projector(pooled))

    def after_step(self, progress: Any) -> None:
        self.copy.follow(rising(self.config.momentum, progress))

    @property
    def steady(self) -> bool:
        return self.steadily_aided

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.copy.backbone]

    def uniform_loss(self) -> dict[str, float]:
        """Twice 2 tau ln n, where n is the number of images in the batch."""
        return {"contrast": 4 * self.config.temperature * math.log(self.largest)}


def symmetric(queries: tuple[Tensor, ...], keys: tuple[Tensor, ...], first: int, temperature: float) -> Tensor:
    """ctr(q1, k2) + ctr(q2, k1) (Alg. 1)."""
    return contrast(queries[0], keys[1], first, temperature) + contrast(queries[1], keys[0], first, temperature)


def contrast(queries: Tensor, keys: Tensor, first: int, temperature: float) -> Tensor:
    """2 tau times the cross-entropy of q k / tau, where the right key of query i is that of row `first` + i (Alg. 1).
    All are float32 and of unit length."""
    with torch.autocast(queries.device.type, enabled=False):
        logits = queries @ keys.T / temperature
    right = torch.arange(first, first + len(queries), device=queries.device)
    return 2 * temperature * F.cross_entropy(logits, right)


def freeze_patches(backbone: Backbone) -> None:
    """The patch projection of a plain ViT keeps its random start (Sec. 4). Other networks have none of this kind."""
    if isinstance(backbone.timm_model, VisionTransformer):
        backbone.timm_model.patch_embed.proj.requires_grad_(False)
