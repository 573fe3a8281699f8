"""BYOL (Grill et al., NeurIPS 2020): predict how a momentum copy of the network encodes the other view."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.byol.settings import BYOLConfig
from vitling.methods.method import TrainingData
from vitling.objectives.distillation import Centre
from vitling.objectives.gather import has_own_images
from vitling.objectives.heads import make_normed_mlp, normalise_rows
from vitling.objectives.momentum import MomentumCopy, apply_by_view, cosine_momentum, join_pixels
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.objectives.regions import split_regions, take_matches
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views

TEMPERATURE, TEACHER_TEMPERATURE, CENTRE = 0.1, 0.04, 0.9  # EsViT's, for regions by a softmax


class BYOL(Objective):
    """Prediction without negatives: a predictor and a copy that no gradient reaches prevent collapse.

    IDMM's Table 10 has no BYOL. Heads and momentum are BYOL's: projector and predictor of two layers, 4096 wide, to
    256, with batch norm after the hidden layer; momentum 0.996, rising to 1. LARS with batches of 4096 does not suit a
    few thousand images, so the recipe has the optimiser of MoCo v3, the closest method in Table 10.

    Both views pass the network together: batch norm in a ResNet sees both, batch norm in the heads one at a time.

    `regions` adds the loss of EsViT's Sec. 4.3, for which no code was released: heads of the same shape predict how the
    copy encodes the most similar region of the other view; batch norm is over all regions of a view. mse is BYOL's
    distance; softmax is the cross-entropy of the two unit vectors under EsViT's softmax, the student's at 0.1, the
    copy's centred and at 0.04.
    """

    capturable_forward = True

    def __init__(self, backbone: Backbone, plan: Plan, config: BYOLConfig | None = None):
        super().__init__(backbone, plan)
        self.config = config or BYOLConfig()
        check_ranges(self.config)
        self.projector, self.predictor = self._make_heads()
        self.region_projector, self.region_predictor = None, None
        if self.config.regions != "none":
            self.region_projector, self.region_predictor = self._make_heads()
            self.weights["region"] = self.config.region_weight
        self.copy = MomentumCopy(backbone, self.projector, self.region_projector)
        self.centre = Centre(self.config.dim, CENTRE) if self.config.regions == "softmax" else None

    def _make_heads(self) -> tuple[nn.Module, nn.Module]:
        hidden, dim = self.config.hidden, self.config.dim
        projector, predictor = (
            make_normed_mlp(width, hidden, dim, last_norm=False, biases=True) for width in (self.backbone.dim, dim)
        )
        return projector, predictor

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        pixels = join_pixels(views)
        features, target_features = self.features(pixels), self.copy.features(pixels)
        predicted = apply_by_view(self._predict, features.pooled).chunk(2)
        targets = apply_by_view(self.copy.head, target_features.pooled).chunk(2)
        terms = {"prediction": distance(predicted[0], targets[1]) + distance(predicted[1], targets[0])}
        if self.region_projector is not None:
            terms["region"] = self._region_loss(features, target_features, batch)
        return {**terms, **self.auxiliary_terms(features, batch, progress)}

    def _region_loss(self, features: Features, target_features: Features, batch: Batch) -> Tensor:
        """Add both directions, each the mean over regions."""
        images = len(batch.ids)
        mine, theirs = (split_regions(some.grid, images).unbind(1) for some in (features, target_features))
        predicted = [apply_to_regions(self._predict_regions, view) for view in mine]
        targets = [apply_to_regions(cast(nn.Module, self.copy.regions), view) for view in theirs]
        pairs = [(predicted[s], take_matches(mine[s], theirs[t], targets[t])) for s, t in ((0, 1), (1, 0))]
        compare = distance if self.centre is None else self._cross_entropy
        loss = sum(compare(p.flatten(0, 1), target.flatten(0, 1)) for p, target in pairs)
        if self.centre is not None and has_own_images(batch):
            self.centre.add(normalise_rows(torch.stack(targets)))
        return cast(Tensor, loss)

    def _cross_entropy(self, predicted: Tensor, targets: Tensor) -> Tensor:
        probabilities = cast(Centre, self.centre).targets(normalise_rows(targets), TEACHER_TEMPERATURE)
        return -(probabilities * (normalise_rows(predicted) / TEMPERATURE).log_softmax(-1)).sum(-1).mean()

    def _predict_regions(self, rows: Tensor) -> Tensor:
        return cast(nn.Module, self.region_predictor)(cast(nn.Module, self.region_projector)(rows))

    def _predict(self, pooled: Tensor) -> Tensor:
        return self.predictor(self.projector(pooled))

    def before_step(self, progress: Progress) -> None:
        if self.centre is not None:
            self.centre.begin()

    def after_step(self, progress: Progress) -> None:
        if self.centre is not None:
            self.centre.move()
        self.copy.follow(cosine_momentum(self.config.momentum, progress))

    def uniform_loss(self) -> dict[str, float]:
        """Return 2 ln(dim) for the softmax over regions, ln(dim) per direction; distances have no such value."""
        return {} if self.centre is None else {"region": 2 * math.log(self.config.dim)}


def apply_to_regions(head: Callable[[Tensor], Tensor], regions: Tensor) -> Tensor:
    """Apply a head to regions [B, T, D] as the rows of one batch; return [B, T, P]."""
    return head(regions.flatten(0, 1)).unflatten(0, regions.shape[:2])


def distance(predicted: Tensor, targets: Tensor) -> Tensor:
    """Average the squared distance of the normalised vectors, 2 - 2 cos (Eq. 2): 0 for equal directions, 4 for opposite
    ones."""
    return (normalise_rows(predicted) - normalise_rows(targets)).square().sum(1).mean()


def build(backbone: Backbone, plan: Plan, config: BYOLConfig, data: TrainingData) -> Objective:
    return BYOL(backbone, plan, config)
