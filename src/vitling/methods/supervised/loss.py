"""Classification: cross-entropy with mixed, smoothed targets, or a logistic loss for several labels per image."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.methods.method import TrainingData
from vitling.methods.supervised.settings import BASELINE
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class Supervised(Objective):
    """A linear head on the pooled features. `class_weights` [C] apply to classes, or to positives of several labels."""

    class_weights: Tensor | None

    capturable_forward = True

    def __init__(
        self,
        backbone: Backbone,
        plan: Plan,
        classes: int,
        multi_label: bool = False,
        smoothing: float = 0.1,
        class_weights: Tensor | None = None,
    ):
        super().__init__(backbone, plan)
        self.classes, self.multi_label, self.smoothing = classes, multi_label, smoothing
        self.outcomes = 2 if multi_label else classes
        self.head = nn.Linear(backbone.dim, classes)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        view = views[0]
        features = self.features(view.pixels)
        logits = self.head(features.pooled).float()
        loss = self.loss(logits, self.targets(view, batch))
        return {"classification": loss, **self.auxiliary_terms(features, batch, progress)}

    def uniform_loss(self) -> dict[str, float]:
        """Return ln C, or ln 2 for several labels; nothing with class weights, which change the scale."""
        return {} if self.class_weights is not None else {"classification": math.log(self.outcomes)}

    def logits(self, images: Tensor) -> Tensor:
        """Classify for evaluation, without torch.compile: its graphs belong to the training batch."""
        return self.head(self.backbone.forward(images).pooled).float()

    def targets(self, view: Views, batch: Batch) -> Tensor:
        """Mix the labels of each image and its partner, [B, C]."""
        if batch.labels is None:
            raise ValueError("Supervised needs labels")
        target = self._encode(batch.labels[batch.ids])
        if view.partner is not None and view.lam is not None:
            target = torch.lerp(self._encode(batch.labels[view.partner]), target, view.lam[:, None])
        return target

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Average the loss over images. Class weights apply to the targets before smoothing: on the smoothed mass of
        rare classes they would make these the best prediction for every image."""
        smoothed = targets * (1 - self.smoothing) + self.smoothing / self.outcomes
        if self.multi_label:
            weights = None if self.class_weights is None else torch.lerp(torch.ones(()), self.class_weights, targets)
            return F.binary_cross_entropy_with_logits(logits, smoothed, weight=weights)
        each = F.cross_entropy(logits, smoothed, reduction="none")
        return each.mean() if self.class_weights is None else (each * (targets @ self.class_weights)).mean()

    def _encode(self, labels: Tensor) -> Tensor:
        return labels.float() if self.multi_label else F.one_hot(labels, self.classes).float()


def build(backbone: Backbone, plan: Plan, config: None, data: TrainingData) -> Objective:
    return Supervised(backbone, plan, data.classes, data.multi_label, BASELINE.smoothing)
