"""DenseCL (Wang et al., CVPR 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.densecl.settings import DenseCLConfig, recipe
from vitling.methods.method import Method, TrainingData
from vitling.methods.moco_v2.settings import make_views, warn_of_batch_norm
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: DenseCLConfig, data: TrainingData) -> Objective:
    from vitling.methods.densecl.loss import DenseCL

    return DenseCL(backbone, plan, config)


METHOD = Method(
    "densecl",
    "finds the other view of an image, and its regions, among queues of keys",
    recipe,
    make_views,
    build,
    DenseCLConfig,
    default_preset="adamw",
    remarks=warn_of_batch_norm,
)
