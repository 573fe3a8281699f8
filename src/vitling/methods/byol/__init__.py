"""BYOL (Grill et al., NeurIPS 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.byol.settings import BYOLConfig, make_views, recipe
from vitling.methods.method import Method, TrainingData
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: BYOLConfig, data: TrainingData) -> Objective:
    from vitling.methods.byol.loss import BYOL

    return BYOL(backbone, plan, config)


METHOD = Method("byol", "predicts how a momentum copy encodes the other view", recipe, make_views, build, BYOLConfig)
