"""BYOL (Grill et al., NeurIPS 2020): predict what a slower copy of the network says of the other view."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.byol.settings import BYOLConfig
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
    """No wrong answers: a predictor and the copy, which no gradient reaches, keep images apart.

    IDMM's Table 10 has no BYOL. Heads and momentum are BYOL's own: projector and predictor of two layers, 4096 wide,
    to 256, with batch norm behind the hidden layer; momentum 0.996, rising to 1. Its LARS with batches of 4096 does not
    suit a few thousand images: the recipe has the optimiser of MoCo v3, the method of Table 10 that is closest to it.

    Both views go through the network together: batch norm in a ResNet sees both, that in the heads one at a time.

    `regions` adds what EsViT's authors added (its Sec. 4.3, of which there is no code): heads of the same shape over
    the regions of a view guess what the copy says of the regions of the other view that look alike; batch norm is over
    all regions of a view. mse is the distance of BYOL; softmax has in its place the cross-entropy of the two vectors,
    both of unit length, under a softmax as EsViT has it: the student's at 0.1, the copy's centred and at 0.04.
    """

    capturable_forward = True

    def __init__(self, backbone: Backbone, plan: Plan, config: BYOLConfig | None = None):
        super().__init__(backbone, plan)
        self.config = config or BYOLConfig()
        check_ranges(self.config)
        self.projector, self.predictor = self._heads(backbone.dim)
        self.region_projector, self.region_predictor = None, None
        if self.config.regions != "none":
            self.region_projector, self.region_predictor = self._heads(backbone.dim)
            self.weights["region"] = self.config.region_weight
        self.copy = MomentumCopy(backbone, self.projector, self.region_projector)
        self.centre = Centre(self.config.dim, CENTRE) if self.config.regions == "softmax" else None

    def _heads(self, features: int) -> tuple[nn.Module, nn.Module]:
        hidden, dim = self.config.hidden, self.config.dim
        projector, predictor = (
            make_normed_mlp(width, hidden, dim, last_norm=False, biases=True) for width in (features, dim)
        )
        return projector, predictor

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        pixels = join_pixels(views)
        features, answered = self.features(pixels), self.copy.features(pixels)
        predicted = apply_by_view(self._predict, features.pooled, 2).chunk(2)
        targets = apply_by_view(self.copy.head, answered.pooled, 2).chunk(2)
        terms = {"prediction": distance(predicted[0], targets[1]) + distance(predicted[1], targets[0])}
        if self.region_projector is not None:
            terms["region"] = self._region(features, answered, batch)
        return {**terms, **self.auxiliary_terms(features, batch, progress)}

    def _region(self, features: Features, answered: Features, batch: Batch) -> Tensor:
        """Both directions, mean over regions."""
        images = len(batch.ids)
        mine, theirs = (split_regions(some.grid, images).unbind(1) for some in (features, answered))
        predicted = [over_regions(self._predict_regions, view) for view in mine]
        targets = [over_regions(cast(nn.Module, self.copy.regions), view) for view in theirs]
        pairs = [(predicted[s], take_matches(mine[s], theirs[t], targets[t])) for s, t in ((0, 1), (1, 0))]
        measure = distance if self.centre is None else self._cross_entropy
        loss = sum(measure(said.flatten(0, 1), right.flatten(0, 1)) for said, right in pairs)
        if self.centre is not None and has_own_images(batch):
            self.centre.add(normalise_rows(torch.stack(targets)))
        return cast(Tensor, loss)

    def _cross_entropy(self, predicted: Tensor, targets: Tensor) -> Tensor:
        right = cast(Centre, self.centre).targets(normalise_rows(targets), TEACHER_TEMPERATURE)
        return -(right * (normalise_rows(predicted) / TEMPERATURE).log_softmax(-1)).sum(-1).mean()

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

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.copy.backbone]

    def uniform_loss(self) -> dict[str, float]:
        """Of regions by a softmax 2 ln of their width, one for each direction; the distance of vectors has none."""
        return {} if self.centre is None else {"region": 2 * math.log(self.config.dim)}


def over_regions(head: Callable[[Tensor], Tensor], regions: Tensor) -> Tensor:
    """[B, T, D] to [B, T, P], all regions as rows of one batch."""
    return head(regions.flatten(0, 1)).unflatten(0, regions.shape[:2])


def distance(predicted: Tensor, targets: Tensor) -> Tensor:
    """The squared distance of the normalised vectors, 2 - 2 cos (Eq. 2), mean over images: 0 for equal directions, 4
    for opposite ones. The loss is that of both views, so 0 to 8."""
    return (normalise_rows(predicted) - normalise_rows(targets)).square().sum(1).mean()
