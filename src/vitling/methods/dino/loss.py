"""DINO (Caron et al., ICCV 2021): the student says of every view what a slower teacher says of another, global one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.dino.settings import DINOConfig
from vitling.objectives.distillation import Centre, DistillationHead, count_global_groups, view_loss
from vitling.objectives.gather import has_own_images
from vitling.objectives.momentum import MomentumCopy, cosine_momentum, join_pixels
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class DINO(Objective):
    """Global views and local ones; the teacher is a copy of the student whose momentum rises to 1. It is the view half
    of EsViT, which adds `terms` of regions (and gives the teacher a head for them).

    Settings are those of IDMM's Table 10. Its "dim 256" is read as the bottleneck of the head, DINO's own 256: the one
    that is compared, as in the other methods there; its "tau 0.1" as the student's temperature, DINO's own too.
    The rest is DINO's: the head, centring, a teacher whose temperature rises from 0.04 to 0.07 over the first tenth of
    the run (30 of 300 epochs), prototypes that are held still in the first epoch. Held still means a gradient of 0:
    weight decay changes their length alone, which is divided out, and AdamW counts their steps from the first real one.
    The number of prototypes is chosen here: DINO's 65,536 are for 1.28 million images; 4,096 are still more than a
    small data set has.
    """

    teacher_temperature: Tensor
    is_self_distillation = True
    capturable_forward = True

    def __init__(
        self,
        backbone: Backbone,
        plan: Plan,
        config: DINOConfig | None = None,
        region_head: DistillationHead | None = None,
    ):
        super().__init__(backbone, plan)
        config = self.config = config or DINOConfig()
        check_ranges(config)
        config.check()
        self.wide = count_global_groups(plan, config.global_crops)
        self.head = new_head(backbone, config)
        self.teacher = MomentumCopy(backbone, self.head, region_head)
        self.centre = Centre(config.prototypes, config.centre)
        self.register_buffer("teacher_temperature", torch.tensor(config.teacher_start), persistent=False)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        wide = join_pixels(views[: self.wide])
        taught = self.teacher.features(wide)
        seen = [self.features(wide), *(self.features(view.pixels) for view in views[self.wide :])]
        return {**self.terms(seen, taught, views, batch), **self.auxiliary_terms(seen, batch, progress)}

    def terms(
        self, seen: Sequence[Features], taught: Features, views: Sequence[Views], batch: Batch
    ) -> dict[str, Tensor]:
        """Of what student and teacher make of views: of the student's, the global ones come first."""
        answers = self.teacher.head(taught.pooled)
        targets = self.centre.targets(answers, self.teacher_temperature)
        if has_own_images(batch):
            self.centre.add(answers)
            self.centre.note(targets)
        logits = self.head(torch.cat([features.pooled for features in seen]))
        by_image = (-1, len(batch.ids), self.config.prototypes)
        return {"view": view_loss(logits.view(by_image), targets.view(by_image), self.config.temperature)}

    @property
    def centres(self) -> list[Centre]:
        """Those of the terms that take part."""
        return [self.centre]

    def before_step(self, progress: Progress) -> None:
        for centre in self.centres:
            centre.begin()
        self.head.thaw.fill_(float(progress.epoch >= self.config.freeze_epochs))
        self.teacher_temperature.fill_(warming(self.config, progress.fraction))

    def newly_active(self, progress: Progress) -> list[nn.Parameter]:
        before = replace(progress, step=progress.step - 1)
        first = before.epoch < self.config.freeze_epochs <= progress.epoch and progress.step > 0
        return [head.prototypes for head in self.student_heads()] if first else []

    def student_heads(self) -> list[DistillationHead]:
        return [self.head]

    def after_step(self, progress: Progress) -> None:
        for centre in self.centres:
            centre.move()
        self.teacher.follow(cosine_momentum(self.config.momentum, progress))

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.teacher.backbone]

    @property
    def final_backbone(self) -> Backbone:
        """The teacher's, as in DINO's and EsViT's own evaluations: an average over many steps of the student's."""
        return self.teacher.backbone

    def uniform_loss(self) -> dict[str, float]:
        """ln K."""
        return {"view": math.log(self.config.prototypes)}

    def health(self) -> dict[str, float]:
        return {"answers": self.centre.health()}


def new_head(backbone: Backbone, config: DINOConfig) -> DistillationHead:
    return DistillationHead(backbone.dim, config.hidden, config.bottleneck, config.prototypes)


def warming(config: DINOConfig, fraction: float) -> float:
    """The teacher's temperature: linear up to its end, then constant."""
    gone = min(1.0, fraction / config.teacher_warmup) if config.teacher_warmup else 1.0
    return config.teacher_start + (config.teacher_temperature - config.teacher_start) * gone
