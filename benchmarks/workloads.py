"""Workloads of the throughput benchmark: simplified objectives with the shape of each method's work."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitling.objectives import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.papers.measure import Workload
from vitling.views import Plan, Views
from vitling.views.policies import make_plan


class InstanceClassification(Objective):
    """IDMM and supervised: a linear classifier over instances, on every crop."""

    capturable_forward = True

    def __init__(self, backbone, plan: Plan, classes: int):
        super().__init__(backbone, plan)
        self.head = nn.Linear(backbone.dim, classes)

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        """Run all crops, which have one size here, in one forward pass."""
        pixels = views[0].pixels if len(views) == 1 else torch.cat([view.pixels for view in views])
        logits = self.head(self.backbone(pixels).pooled).float().split([len(view.pixels) for view in views])
        target = [batch.ids.repeat(view.count) for view in views]
        return {f"group{g}": F.cross_entropy(x, t) for g, (x, t) in enumerate(zip(logits, target))}


class Contrast(Objective):
    """SimCLR: two views, a projection, NT-Xent."""

    capturable_forward = True

    def __init__(self, backbone, plan: Plan, classes: int):
        super().__init__(backbone, plan)
        self.head = nn.Sequential(nn.Linear(backbone.dim, backbone.dim), nn.ReLU(), nn.Linear(backbone.dim, 256))

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        z = F.normalize(self.head(self.backbone(views[0].pixels).pooled).float())
        similarity = z @ z.T / 0.1
        similarity.fill_diagonal_(float("-inf"))
        n = len(batch.ids)
        return {"contrast": F.cross_entropy(similarity, torch.arange(2 * n, device=z.device).roll(n))}


class Distillation(Objective):
    """DINO: a student on all views, a teacher on the two global views."""

    capturable_forward = True

    def __init__(self, backbone, plan: Plan, classes: int):
        super().__init__(backbone, plan)
        self.head = nn.Sequential(nn.Linear(backbone.dim, 2048), nn.GELU(), nn.Linear(2048, 256), nn.Linear(256, 4096))
        self.teacher, self.teacher_head = copy.deepcopy(backbone), copy.deepcopy(self.head)
        for p in (*self.teacher.parameters(), *self.teacher_head.parameters()):
            p.requires_grad_(False)

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.teacher]

    def forward(self, views: list[Views], batch: Batch, progress: Progress) -> dict[str, Tensor]:
        wide = torch.cat([views[0].pixels, views[1].pixels])
        with torch.no_grad():
            target = (self.teacher_head(self.teacher(wide).pooled).float() / 0.04).softmax(1).chunk(2)
        pooled = [self.backbone(wide).pooled, self.backbone(views[2].pixels).pooled]
        student = (self.head(torch.cat(pooled)).float() / 0.1).log_softmax(1).split(len(batch.ids))
        return {"view": -torch.stack([(t * s).sum(1).mean() for t in target for s in student]).mean()}

    @torch.no_grad()
    def after_step(self, progress: Progress) -> None:
        for live, slow in ((self.backbone, self.teacher), (self.head, self.teacher_head)):
            torch._foreach_lerp_(list(slow.parameters()), list(live.parameters()), 0.004)


WORKLOADS = {
    "idmm": Workload("deit_tiny_patch16_224", make_plan("idmm-pretrain"), 256, InstanceClassification),
    "idmm-64": Workload("deit_tiny_patch16_224", make_plan("idmm-pretrain"), 64, InstanceClassification),
    "simclr": Workload("vit_small_patch16_224", make_plan("simclr"), 256, Contrast),
    "supervised": Workload("swin_tiny_patch4_window7_224", make_plan("supervised"), 256, InstanceClassification),
    "dino": Workload("swin_tiny_patch4_window7_224", make_plan("dino"), 64, Distillation),
    "tiny": Workload("vit_micro_patch4_32", make_plan("simclr", 32), 64, Contrast),
    "views-96": Workload("vit_micro_patch4_32", make_plan("simclr", 96), 64, Contrast),
}
