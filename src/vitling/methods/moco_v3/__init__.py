"""MoCo v3 (Chen, Xie and He, ICCV 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.method import Method, TrainingData
from vitling.methods.moco_v3.settings import MoCoV3Config, make_views, recipe
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: MoCoV3Config, data: TrainingData) -> Objective:
    from vitling.methods.moco_v3.loss import MoCoV3

    return MoCoV3(backbone, plan, config, data.batch_sizes)


METHOD = Method(
    "moco-v3",
    "finds the other view of an image, encoded by a momentum copy, among those of the batch",
    recipe,
    make_views,
    build,
    MoCoV3Config,
    compares_images=True,
)
