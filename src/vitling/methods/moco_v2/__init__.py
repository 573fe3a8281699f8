"""MoCo v2 (Chen et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.method import Method, TrainingData
from vitling.methods.moco_v2.settings import MoCoV2Config, make_views, recipe, warn_of_batch_norm
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: MoCoV2Config, data: TrainingData) -> Objective:
    from vitling.methods.moco_v2.loss import MoCoV2

    return MoCoV2(backbone, plan, config)


METHOD = Method(
    "moco-v2",
    "finds the other view of an image among a queue of keys",
    recipe,
    make_views,
    build,
    MoCoV2Config,
    default_preset="adamw",
    remarks=warn_of_batch_norm,
)
