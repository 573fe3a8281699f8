"""EsViT (Li et al., ICLR 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.dino.settings import SHAPES, dino_plan
from vitling.methods.esvit.settings import (
    EsViTConfig,
    adapt,
    check_run,
    complete_weights,
    default_epochs,
    fit_views,
    recipe,
    remark_on_cpu,
)
from vitling.methods.method import Method, TrainingData
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: EsViTConfig, data: TrainingData) -> Objective:
    from vitling.methods.esvit.loss import EsViT

    return EsViT(backbone, plan, config)


METHOD = Method(
    "esvit",
    "predicts a momentum teacher's output for a different view, for whole views and regions",
    recipe,
    dino_plan,
    build,
    EsViTConfig,
    default_epochs=default_epochs,
    adapt=adapt,
    adapted=("prototypes", "teacher_temperature", "match", "momentum"),
    adapted_to_epochs=("momentum",),
    shapes=SHAPES,
    continued=("match",),
    complete=complete_weights,
    fit_views=fit_views,
    check_run=check_run,
    remarks=remark_on_cpu,
)
