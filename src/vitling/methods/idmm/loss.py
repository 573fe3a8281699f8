"""IDMM (Cao et al., ECCV 2022): instance discrimination with multi-crop and CutMix; every image is a class.

Equations are numbered as in the paper.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.methods.idmm.settings import IDMMConfig
from vitling.methods.method import TrainingData
from vitling.objectives.classifiers import FullClassifier, SampledClassifier, Scores
from vitling.objectives.heads import make_projection_mlp
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views

PROJECTED = 256  # output width of Table 9's "proj. MLP"; unpublished, so SimCLR's head with the width of Table 10


class IDMM(Objective):
    """A linear classifier with bias over all `images`, on the pooled features of every crop.

    Terms: `global` and `local`, each the mean over its group's crops, so with two and four of them a local crop has
    half the weight of a global one; `instance` if the plan has one group. `seed` is for the sampled classifier.
    """

    capturable_forward = True

    def __init__(self, backbone: Backbone, plan: Plan, images: int, config: IDMMConfig | None = None, seed: int = 0):
        super().__init__(backbone, plan)
        config = config or IDMMConfig()
        check_ranges(config)
        if len(plan.groups) > 2:
            raise ValueError(f"IDMM has one group of crops or two, not {len(plan.groups)}")
        self.images = images
        self.names = ("instance",) if len(plan.groups) == 1 else ("global", "local")
        mlp = config.projection == "mlp"
        self.projection = make_projection_mlp(backbone.dim, PROJECTED) if mlp else nn.Identity()
        self.classifier = make_classifier(config, PROJECTED if mlp else backbone.dim, images, seed)
        self.epsilon = uniform_mass(config, images)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        by_size: dict[int, list[int]] = {}
        for g, view in enumerate(views):
            by_size.setdefault(view.pixels.shape[-1], []).append(g)
        features = [self.features(torch.cat([views[g].pixels for g in groups])) for groups in by_size.values()]
        order = [g for groups in by_size.values() for g in groups]
        pooled = torch.cat([one.pooled for one in features])
        losses = self.losses(pooled, [views[g] for g in order], batch)
        parts = dict(zip(order, losses.split([len(views[g].pixels) for g in order])))
        terms = {name: parts[g].mean() for g, name in enumerate(self.names)}
        return {**terms, **self.auxiliary_terms(features, batch, progress)}

    def losses(self, pooled: Tensor, views: list[Views], batch: Batch) -> Tensor:
        """Compute the losses [M] of all crops, in the order of the views, with one call of the classifier."""
        own = torch.cat([batch.ids.repeat(view.count) for view in views])
        partner = torch.cat([batch.ids.repeat(v.count) if v.partner is None else v.partner for v in views])
        lam = [pooled.new_ones(len(v.pixels), dtype=torch.float32) if v.lam is None else v.lam for v in views]
        scores = self.classifier(self.projection(pooled), own, partner, batch.key)
        return cross_entropy(scores, torch.cat(lam), self.epsilon)

    def uniform_loss(self) -> dict[str, float]:
        """Return ln N for N images."""
        return dict.fromkeys(self.names, math.log(self.images))


def cross_entropy(scores: Scores, lam: Tensor, epsilon: float) -> Tensor:
    """Compute Eq. 18 for mixed images, [M]; `epsilon` is the mass spread evenly over all N classes.

    The target is (1 - epsilon) (lam own + (1 - lam) partner) + epsilon / N. Eq. 19 misprints the mass C of classes
    that are in neither image: all masses add up to 1 if C = eps / (N - 1), without lambda.
    """
    mixed = torch.lerp(scores.partner, scores.own, lam)
    return scores.total - (1 - epsilon) * mixed - epsilon * scores.mean


def uniform_mass(config: IDMMConfig, images: int) -> float:
    """Return the mass spread over all classes. Eq. 17 gives eps / (N - 1) to every class but the image's own, which
    equals N / (N - 1) eps spread over all."""
    others = config.smoothing_form == "others"
    return config.smoothing * (images / max(images - 1, 1) if others else 1.0)


def make_classifier(config: IDMMConfig, dim: int, images: int, seed: int = 0) -> FullClassifier:
    if config.classifier == "sampled":
        return SampledClassifier(dim, images, config.negatives, seed)
    return FullClassifier(dim, images)


def build(backbone: Backbone, plan: Plan, config: IDMMConfig, data: TrainingData) -> Objective:
    return IDMM(backbone, plan, data.images, config, data.seed)
