"""DINO (Caron et al., ICCV 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.dino.settings import SHAPES, DINOConfig, dino_plan, recipe
from vitling.methods.method import Method, TrainingData
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: DINOConfig, data: TrainingData) -> Objective:
    from vitling.methods.dino.loss import DINO

    return DINO(backbone, plan, config)


METHOD = Method(
    "dino",
    "predicts a momentum teacher's output for a different global view",
    recipe,
    dino_plan,
    build,
    DINOConfig,
    shapes=SHAPES,
)
