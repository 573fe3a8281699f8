"""MoCo v3 (Chen, Xie and He, ICCV 2021): find the other view of an image among those of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.methods.method import TrainingData
from vitling.methods.moco_v3.settings import MoCoV3Config
from vitling.objectives.gather import GatheredRows, gather_batch
from vitling.objectives.heads import make_normed_mlp, normalise_rows
from vitling.objectives.momentum import MomentumCopy, apply_by_view, cosine_momentum, join_pixels
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class MoCoV3(Objective):
    """Each view is a query for the other; the keys come from a copy of the network whose momentum rises to 1.

    Settings are those of IDMM's Table 10 ("dim" is the width of queries and keys). The rest is MoCo v3's for ViTs: a
    projector of three layers and a predictor of two, 4096 wide, with batch norm; momentum 0.99; no queue; the patch
    projection of a plain ViT is frozen at its initialisation, which the authors found more stable. Position embeddings
    and initialisation are the network's, so that all methods are compared on the same one.

    `batches` are the sizes of an epoch's batches; `uniform_loss` depends on them. Both views pass the network together:
    batch norm in a ResNet sees both, batch norm in the heads one at a time.
    """

    compares_images = True
    capturable_forward = True

    def __init__(self, backbone: Backbone, plan: Plan, config: MoCoV3Config | None = None, batches: Sequence[int] = ()):
        super().__init__(backbone, plan)
        self.config = config or MoCoV3Config()
        check_ranges(self.config)
        if self.config.frozen_patches:
            freeze_patches(backbone)
        hidden, dim = self.config.hidden, self.config.dim
        self.projector = make_normed_mlp(backbone.dim, hidden, hidden, dim, last_norm=True, biases=False)
        self.predictor = make_normed_mlp(dim, hidden, dim, last_norm=True, biases=False)
        self.copy = MomentumCopy(backbone, self.projector)
        self.batches = batches

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        pixels = join_pixels(views)
        features = self.features(pixels)
        queries = normalise_rows(apply_by_view(self._predict, features.pooled))
        keys = normalise_rows(apply_by_view(self.copy.head, self.copy.features(pixels).pooled))
        gathered = gather_batch(torch.cat(keys.chunk(2), dim=1), batch)
        first, second = (GatheredRows(rows, gathered.first) for rows in gathered.rows.chunk(2, dim=1))
        loss = symmetric_loss(queries.chunk(2), (first, second), self.config.temperature)
        return {"contrast": loss, **self.auxiliary_terms(features, batch, progress)}

    def _predict(self, pooled: Tensor) -> Tensor:
        return self.predictor(self.projector(pooled))

    def after_step(self, progress: Progress) -> None:
        self.copy.follow(cosine_momentum(self.config.momentum, progress))

    def uniform_loss(self) -> dict[str, float]:
        """Return twice 2 tau ln n for a batch of n images."""
        costs = [4 * self.config.temperature * math.log(n) for n in self.batches]
        return {"contrast": sum(costs) / len(costs)} if costs else {}


def symmetric_loss(queries: Sequence[Tensor], keys: Sequence[GatheredRows], temperature: float) -> Tensor:
    """Compute ctr(q1, k2) + ctr(q2, k1) (Alg. 1)."""
    return contrast(queries[0], keys[1], temperature) + contrast(queries[1], keys[0], temperature)


def contrast(queries: Tensor, keys: GatheredRows, temperature: float) -> Tensor:
    """Compute 2 tau times the cross-entropy of q k / tau; the positive key is that of the same image (Alg. 1). All
    vectors are float32 and of unit length."""
    with torch.autocast(queries.device.type, enabled=False):
        logits = queries @ keys.rows.T / temperature
    positives = torch.arange(keys.first, keys.first + len(queries), device=queries.device)
    return 2 * temperature * F.cross_entropy(logits, positives)


def freeze_patches(backbone: Backbone) -> None:
    """Freeze the patch projection of a plain ViT (Sec. 4); other networks have none of this kind."""
    if isinstance(backbone.timm_model, VisionTransformer):
        backbone.timm_model.patch_embed.proj.requires_grad_(False)


def build(backbone: Backbone, plan: Plan, config: MoCoV3Config, data: TrainingData) -> Objective:
    return MoCoV3(backbone, plan, config, data.batch_sizes)
