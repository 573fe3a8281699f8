"""Semantic segmentation: UPerNet on a backbone, trained with cross-entropy."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.data.annotations.split import IGNORE
from vitling.dense.objective import DenseObjective
from vitling.dense.targets import MaskTargets
from vitling.dense.upernet import AuxiliaryHead, UPerNet
from vitling.objectives.objective import Batch
from vitling.objectives.progress import Progress
from vitling.views.plan import Plan
from vitling.views.renderer import Views

AUXILIARY_WEIGHT = 0.4


class SegmentationObjective(DenseObjective):
    """UPerNet on a backbone. Without `targets` it only predicts."""

    def __init__(
        self,
        backbone: Backbone,
        plan: Plan,
        targets: MaskTargets | None,
        classes: int,
        width: int = 512,
        frozen: int = 0,
    ):
        super().__init__(backbone, plan, frozen)
        self.targets, self.classes = targets, classes
        self.capturable_forward = targets is not None and targets.masks.is_cuda  # else it waits for the host
        self.head = UPerNet(self.maps.widths, classes, width)
        self.auxiliary = AuxiliaryHead(self.maps.widths, classes, width // 2)
        self.weights["auxiliary"] = AUXILIARY_WEIGHT

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        view = views[0]
        assert self.targets is not None
        assert view.boxes is not None
        targets = self.targets.view(batch.ids, view.boxes, view.pixels.shape[-1])
        maps = self.compute_maps(view.pixels)
        return {
            "segmentation": average_loss(self.enlarge(self.head(maps), view.pixels), targets),
            "auxiliary": average_loss(self.enlarge(self.auxiliary(maps), view.pixels), targets),
        }

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.head, self.auxiliary]

    def uniform_loss(self) -> dict[str, float]:
        return {"segmentation": math.log(self.classes)} if self.classes > 1 else {}

    def predict(self, pixels: Tensor) -> Tensor:
        """Return logits [B, K, H, W] of normalised images [B, C, H, W], without torch.compile."""
        return self.enlarge(self.head.forward(self.predict_maps(pixels)), pixels)

    def enlarge(self, logits: Tensor, pixels: Tensor) -> Tensor:
        """Resize logits to the padded images, and cut off the padding."""
        height, width = pixels.shape[-2:]
        padded = self.maps.pad(pixels).shape[-2:]
        enlarged = F.interpolate(logits.float(), size=padded, mode="bilinear", align_corners=False)
        return enlarged[:, :, :height, :width]


def average_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Average the cross-entropy over the pixels that have a class; 0 if there are none.

    Pixels are flattened because the loss of images has no deterministic version on GPUs.
    """
    flat = logits.permute(0, 2, 3, 1).flatten(0, 2)
    total = F.cross_entropy(flat, targets.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / (targets != IGNORE).sum().clamp(min=1)
