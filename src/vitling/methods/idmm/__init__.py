"""IDMM (Cao et al., ECCV 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.idmm.settings import IDMMConfig, idmm_plan, recipe
from vitling.methods.method import Method, TrainingData
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: IDMMConfig, data: TrainingData) -> Objective:
    from vitling.methods.idmm.loss import IDMM

    return IDMM(backbone, plan, data.images, config, data.seed)


METHOD = Method("idmm", "classifies every image as its own class", recipe, idmm_plan, build, IDMMConfig)
