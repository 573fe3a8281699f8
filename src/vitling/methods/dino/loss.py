"""DINO (Caron et al., ICCV 2021): predict a momentum teacher's output for a different global view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.features import Features
from vitling.methods.dino.settings import DINOConfig
from vitling.methods.method import TrainingData
from vitling.objectives.distillation import Centre, DistillationHead, count_global_groups, view_loss
from vitling.objectives.gather import has_own_images
from vitling.objectives.momentum import MomentumCopy, cosine_momentum, join_pixels
from vitling.objectives.objective import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.ranges import check_ranges
from vitling.views.plan import Plan
from vitling.views.renderer import Views


class DINO(Objective):
    """Self-distillation between global and local views; the teacher is a copy of the student whose momentum rises to 1.
    EsViT extends `terms` by regions and gives the teacher a head for them.

    Settings are those of IDMM's Table 10. Its "dim 256" is read as the head's bottleneck (256 in DINO), the vector that
    is compared, as in the table's other methods; its "tau 0.1" as the student's temperature (0.1 in DINO). The rest is
    DINO's: the head, centring, a teacher temperature that rises from 0.04 to 0.07 over the first tenth of the run (30
    of 300 epochs), prototypes that are frozen in the first epoch. Frozen means a gradient of 0: weight decay changes
    only their length, which is divided out, and AdamW counts their steps from the first real gradient. The number
    of prototypes is chosen here: DINO's 65,536 are for 1.28 million images; 4,096 exceed the images of a small set.
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
        self.global_groups = count_global_groups(plan, config.global_crops)
        self.head = make_head(backbone, config)
        self.teacher = MomentumCopy(backbone, self.head, region_head)
        self.centre = Centre(config.prototypes, config.centre)
        self.register_buffer("teacher_temperature", torch.tensor(config.teacher_start), persistent=False)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        global_pixels = join_pixels(views[: self.global_groups])
        teacher = self.teacher.features(global_pixels)
        student = [self.features(global_pixels), *(self.features(view.pixels) for view in views[self.global_groups :])]
        return {**self.terms(student, teacher, views, batch), **self.auxiliary_terms(student, batch, progress)}

    def terms(
        self, student: Sequence[Features], teacher: Features, views: Sequence[Views], batch: Batch
    ) -> dict[str, Tensor]:
        """Compute the terms from the student's features, global views first, and the teacher's."""
        answers = self.teacher.head(teacher.pooled)
        targets = self.centre.targets(answers, self.teacher_temperature)
        if has_own_images(batch):
            self.centre.add(answers)
            self.centre.note(targets)
        logits = self.head(torch.cat([features.pooled for features in student]))
        by_image = (-1, len(batch.ids), self.config.prototypes)
        return {"view": view_loss(logits.view(by_image), targets.view(by_image), self.config.temperature)}

    @property
    def centres(self) -> list[Centre]:
        """The centres of the active terms."""
        return [self.centre]

    def before_step(self, progress: Progress) -> None:
        for centre in self.centres:
            centre.begin()
        self.head.thaw.fill_(float(progress.epoch >= self.config.freeze_epochs))
        self.teacher_temperature.fill_(teacher_temperature_at(self.config, progress))

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

    @property
    def final_backbone(self) -> Backbone:
        """The teacher's backbone, as in DINO's and EsViT's evaluations: an average over many steps of the student."""
        return self.teacher.backbone

    def uniform_loss(self) -> dict[str, float]:
        """Return ln K for K prototypes."""
        return {"view": math.log(self.config.prototypes)}

    def health(self) -> dict[str, float]:
        return {"answers": self.centre.health()}


def make_head(backbone: Backbone, config: DINOConfig) -> DistillationHead:
    return DistillationHead(backbone.dim, config.hidden, config.bottleneck, config.prototypes)


def teacher_temperature_at(config: DINOConfig, progress: Progress) -> float:
    """Return the teacher's temperature: a linear warm-up by steps or by epochs, then constant. By epochs it has its
    final value in the last of the warm-up's epochs already, as in the released code."""
    if config.teacher_warmup_per == "epoch":
        epochs = round(config.teacher_warmup * progress.epochs)
        warmed = progress.epochs_done / max(1, epochs - 1) if progress.epochs_done < epochs else 1.0
    else:
        warmed = min(1.0, progress.fraction / config.teacher_warmup) if config.teacher_warmup else 1.0
    return config.teacher_start + (config.teacher_temperature - config.teacher_start) * warmed


def build(backbone: Backbone, plan: Plan, config: DINOConfig, data: TrainingData) -> Objective:
    return DINO(backbone, plan, config)
