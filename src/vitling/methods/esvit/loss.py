"""EsViT (Li et al., ICLR 2022): DINO's task for whole views, and the same for their regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.dino.loss import DINO, new_head
from vitling.methods.esvit.settings import EsViTConfig
from vitling.objectives.distillation import Centre, DistillationHead
from vitling.objectives.gather import has_own_images
from vitling.objectives.objective import Batch
from vitling.objectives.places import locate_regions, match_by_place
from vitling.objectives.progress import Progress
from vitling.objectives.regions import (
    cross_entropy,
    join_regions,
    match_by_features,
    split_regions,
    squared_distance,
    subsample,
)
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class EsViT(DINO):
    """The view loss of DINO (Eq. 1) and the region loss (Eq. 2), half and half as in Algorithm 1; the text has them
    with weight 1 each. Two heads of the same shape, two centres, one teacher.

    A region of the student has to answer as the teacher does of the region of another view whose features, after the
    final norm, have the highest cosine with its own (`match` argmax; Algorithm 1 leaves out the normalisation, and
    averages the view's answers into the centre of regions; Eq. 2 and the released code do neither), or of those that
    show the same place (`match` place, the default: see `places`).

    Until `region_from` the region half rests: it has no gradient, no moments and no decay, its centre stays at 0, and
    the view loss has the weight of both, as that of DINO had in the runs which the paper went on from.
    """

    config: EsViTConfig

    def __init__(self, backbone: Backbone, plan: Plan, config: EsViTConfig | None = None):
        config = config or EsViTConfig()
        check_ranges(config)
        config.check()
        if config.needs_boxes and (plan.loses_boxes or not all(group.return_boxes for group in plan.groups)):
            raise ValueError("these views come without their places: take dino_plan(config, size), or match='argmax'")
        head = new_head(backbone, config) if config.region_weight else None
        super().__init__(backbone, plan, config, head)
        self.region_head = head
        self.region_centre = Centre(config.prototypes, config.centre)
        if head is not None and config.region_loss == "mse":
            head.prototypes.requires_grad_(False)  # not used
        if not config.view_weight:
            self.head.requires_grad_(False)
        self.phases = 2 if config.region_from else 1
        self._enter(int(self.phases == 1))

    def _enter(self, phase: int) -> None:
        """0: the regions rest; 1: they take part."""
        self.phase = phase
        view, region = self.config.view_weight, self.config.region_weight
        self.weights["view"], self.weights["region"] = (view if phase else view + region), region

    def terms(
        self, seen: Sequence[Features], taught: Features, views: Sequence[Views], batch: Batch
    ) -> dict[str, Tensor]:
        terms = super().terms(seen, taught, views, batch) if self.config.view_weight else {}
        if self.region_head is not None:
            resting = torch.zeros((), device=taught.pooled.device)
            terms["region"] = self._region(self.region_head, seen, taught, views, batch) if self.phase else resting
        return terms

    def _region(
        self,
        head: DistillationHead,
        seen: Sequence[Features],
        taught: Features,
        views: Sequence[Views],
        batch: Batch,
    ) -> Tensor:
        teacher, images = cast(DistillationHead, self.teacher.regions), len(batch.ids)
        *mine, theirs = (
            split_regions(subsample(features.grid, self.config.region_stride), images) for features in (*seen, taught)
        )
        if self.config.match == "place":
            plan = match_by_place(locate_regions(self.backbone, views, self.wide, self.config.region_stride), images)
        else:
            plan = match_by_features([some.detach() for some in mine], theirs, self.config.match)
        student = head.units(join_regions(mine))
        with torch.no_grad():
            targets, prototypes = teacher.units(join_regions([theirs])), teacher.directions()
        if self.config.region_loss == "mse":
            return squared_distance(student, targets, plan)
        loss = cross_entropy(
            student,
            head.directions(),
            self.config.temperature,
            targets,
            prototypes,
            self.region_centre.mean,
            self.teacher_temperature,
            plan,
        )
        if has_own_images(batch):
            self._tell_centre(targets.float(), prototypes.float(), batch.ids)
        return loss

    @torch.no_grad()
    def _tell_centre(self, targets: Tensor, prototypes: Tensor, ids: Tensor) -> None:
        """The sum of all answers is the answer to the sum. For the health of all, a region of each image is asked, of
        every image another one."""
        images, regions, _ = targets.shape
        asked = targets[torch.arange(images, device=targets.device), ids % regions]
        with torch.autocast(targets.device.type, enabled=False):
            self.region_centre.add_sum(F.linear(targets.sum((0, 1)), prototypes), images * regions)
            self.region_centre.note(self.region_centre.targets(F.linear(asked, prototypes), self.teacher_temperature))

    def student_heads(self) -> list[DistillationHead]:
        return [*super().student_heads(), *([self.region_head] if self.region_head is not None else [])]

    @property
    def centres(self) -> list[Centre]:
        views = [self.centre] if self.config.view_weight else []
        return [*views, self.region_centre] if self._region_answers else views

    @property
    def _region_answers(self) -> bool:
        """Whether there is a softmax over regions in this phase."""
        return self.region_head is not None and self.config.region_loss == "softmax" and self.phase > 0

    def before_step(self, progress: Progress) -> None:
        if self.phases > 1:
            self._enter(int(progress.epochs_done >= self.config.region_from))
        super().before_step(progress)
        if self.region_head is not None:
            self.region_head.thaw.copy_(self.head.thaw)

    def uniform_loss(self) -> dict[str, float]:
        """ln K of each half that has a softmax and takes part."""
        taking_part = {"view": bool(self.config.view_weight), "region": self._region_answers}
        return {name: math.log(self.config.prototypes) for name, on in taking_part.items() if on}

    def health(self) -> dict[str, float]:
        views = super().health() if self.config.view_weight else {}
        regions = {"answers to regions": self.region_centre.health()}
        return {**views, **regions} if self._region_answers else views
