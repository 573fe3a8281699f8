"""BYOL (Grill et al., NeurIPS 2020): predict what a slower copy of the network says of the other view."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.objectives.config import BYOLConfig
from vitling.objectives.heads import normed_mlp, unit
from vitling.objectives.momentum import MomentumCopy, by_view, pixels_of, rising
from vitling.objectives.objective import Batch, Objective
from vitling.views.config import Plan
from vitling.views.easel import Views


class BYOL(Objective):
    """No wrong answers: a predictor and the copy, which no gradient reaches, keep images apart.

    IDMM's Table 10 has no BYOL. Heads and momentum are BYOL's own: projector and predictor of two layers, 4096 wide,
    to 256, with batch norm behind the hidden layer; momentum 0.996, rising to 1. Its LARS with batches of 4096 does not
    suit a few thousand images: the recipe has the optimiser of MoCo v3, the method of Table 10 that is closest to it.

    Both views go through the network together: batch norm in a ResNet sees both, that in the heads one at a time.
    """

    def __init__(self, backbone: Backbone, plan: Plan, config: BYOLConfig | None = None):
        super().__init__(backbone, plan)
        self.config = config or BYOLConfig()
        self.config.check()
        hidden, dim = self.config.hidden, self.config.dim
        self.projector = normed_mlp(backbone.dim, hidden, dim, last_norm=False, biases=True)
        self.predictor = normed_mlp(dim, hidden, dim, last_norm=False, biases=True)
        self.copy = MomentumCopy(backbone, self.projector)

    def forward(self, views: list[Views], batch: Batch, progress: Any) -> dict[str, Tensor]:
        pixels = pixels_of(views)
        features = self.features(pixels)
        predicted = by_view(self._predict, features.pooled, 2).chunk(2)
        targets = self.copy(pixels, views=2).chunk(2)
        loss = distance(predicted[0], targets[1]) + distance(predicted[1], targets[0])
        return {"prediction": loss, **self.auxiliary_terms(features, batch, progress)}

    def _predict(self, pooled: Tensor) -> Tensor:
        return self.predictor(self.projector(pooled))

    def after_step(self, progress: Any) -> None:
        self.copy.follow(rising(self.config.momentum, progress))

    @property
    def steady(self) -> bool:
        return self.steadily_aided

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.copy.backbone]


def distance(predicted: Tensor, targets: Tensor) -> Tensor:
    """The squared distance of the normalised vectors, 2 - 2 cos (Eq. 2), mean over images: 0 for equal directions, 4
    for opposite ones. The loss is that of both views, so 0 to 8."""
    return (unit(predicted) - unit(targets)).square().sum(1).mean()
