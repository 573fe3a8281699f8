"""EsViT (Li et al., ICLR 2022): DINO's task for whole views and for their regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.dino.loss import DINO, make_head
from vitling.methods.esvit.settings import EsViTConfig
from vitling.methods.method import TrainingData
from vitling.objectives.distillation import Centre, DistillationHead
from vitling.objectives.gather import has_own_images
from vitling.objectives.objective import Batch, Objective
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
    """DINO's view loss (Eq. 1) and the region loss (Eq. 2), half and half as in Algorithm 1; the text weights each with
    1. Two heads of the same shape, two centres, one teacher.

    A student region predicts the teacher's answer to the region of another view whose features after the final norm
    have the highest cosine with its own (`match` argmax; Algorithm 1 omits the normalisation and averages the answers
    to views into the region centre, Eq. 2 and the released code do neither), or to the regions at the same place of the
    image (`match` place, the default; see `places`).

    Before `region_from` the region loss is off: no gradient, no moments, no decay, a centre of 0. The view loss then
    has the weight of both, as in the DINO runs that the paper continues.
    """

    config: EsViTConfig

    def __init__(self, backbone: Backbone, plan: Plan, config: EsViTConfig | None = None):
        config = config or EsViTConfig()
        check_ranges(config)
        config.check()
        if config.needs_boxes and (plan.loses_boxes or not all(group.return_boxes for group in plan.groups)):
            raise ValueError("these views have no boxes: use dino_plan(config, size) or match='argmax'")
        head = make_head(backbone, config) if config.region_weight else None
        super().__init__(backbone, plan, config, head)
        self.region_head = head
        self.region_centre = Centre(config.prototypes, config.centre)
        if head is not None and config.region_loss == "mse":
            head.prototypes.requires_grad_(False)  # not used
        if not config.view_weight:
            self.head.requires_grad_(False)
        self.phases = 2 if config.region_from else 1
        self._enter_phase(int(self.phases == 1))

    def _enter_phase(self, phase: int) -> None:
        """Turn the region loss off (0) or on (1)."""
        self.phase = phase
        view, region = self.config.view_weight, self.config.region_weight
        self.weights["view"], self.weights["region"] = (view if phase else view + region), region

    def terms(
        self, student: Sequence[Features], teacher: Features, views: Sequence[Views], batch: Batch
    ) -> dict[str, Tensor]:
        terms = super().terms(student, teacher, views, batch) if self.config.view_weight else {}
        if self.region_head is not None:
            off = torch.zeros((), device=teacher.pooled.device)
            terms["region"] = self._region_loss(self.region_head, student, teacher, views, batch) if self.phase else off
        return terms

    def _region_loss(
        self,
        head: DistillationHead,
        student: Sequence[Features],
        teacher: Features,
        views: Sequence[Views],
        batch: Batch,
    ) -> Tensor:
        teacher_head, images = cast(DistillationHead, self.teacher.regions), len(batch.ids)
        stride = self.config.region_stride
        *mine, theirs = (split_regions(subsample(f.grid, stride), images) for f in (*student, teacher))
        if self.config.match == "place":
            plan = match_by_place(locate_regions(self.backbone, views, self.global_groups, stride), images)
        else:
            plan = match_by_features([regions.detach() for regions in mine], theirs, self.config.match)
        units = head.units(join_regions(mine))
        with torch.no_grad():
            targets, prototypes = teacher_head.units(join_regions([theirs])), teacher_head.directions()
        if self.config.region_loss == "mse":
            return squared_distance(units, targets, plan)
        loss = cross_entropy(
            units,
            head.directions(),
            self.config.temperature,
            targets,
            prototypes,
            self.region_centre.mean,
            self.teacher_temperature,
            plan,
        )
        if has_own_images(batch):
            self._update_centre(targets.float(), prototypes.float(), batch.ids)
        return loss

    @torch.no_grad()
    def _update_centre(self, targets: Tensor, prototypes: Tensor, ids: Tensor) -> None:
        """Add all answers to the centre: their sum is the answer to the sum. Health is measured on one region per
        image, at a place that varies with the image."""
        images, regions, _ = targets.shape
        sample = targets[torch.arange(images, device=targets.device), ids % regions]
        with torch.autocast(targets.device.type, enabled=False):
            self.region_centre.add_sum(F.linear(targets.sum((0, 1)), prototypes), images * regions)
            self.region_centre.note(self.region_centre.targets(F.linear(sample, prototypes), self.teacher_temperature))

    def student_heads(self) -> list[DistillationHead]:
        return [*super().student_heads(), *([self.region_head] if self.region_head is not None else [])]

    @property
    def centres(self) -> list[Centre]:
        views = [self.centre] if self.config.view_weight else []
        return [*views, self.region_centre] if self._has_region_softmax else views

    @property
    def _has_region_softmax(self) -> bool:
        """Return whether this phase has a softmax over regions."""
        return self.region_head is not None and self.config.region_loss == "softmax" and self.phase > 0

    def before_step(self, progress: Progress) -> None:
        if self.phases > 1:
            self._enter_phase(int(progress.epochs_done >= self.config.region_from))
        super().before_step(progress)
        if self.region_head is not None:
            self.region_head.thaw.copy_(self.head.thaw)

    def uniform_loss(self) -> dict[str, float]:
        """Return ln K for each active term with a softmax."""
        active = {"view": bool(self.config.view_weight), "region": self._has_region_softmax}
        return {name: math.log(self.config.prototypes) for name, is_active in active.items() if is_active}

    def health(self) -> dict[str, float]:
        views = super().health() if self.config.view_weight else {}
        regions = {"answers to regions": self.region_centre.health()}
        return {**views, **regions} if self._has_region_softmax else views


def build(backbone: Backbone, plan: Plan, config: EsViTConfig, data: TrainingData) -> Objective:
    return EsViT(backbone, plan, config)
