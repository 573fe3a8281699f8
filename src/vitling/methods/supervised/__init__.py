"""Supervised classification as pre-training: the baseline of IDMM's Table 6."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.method import Method, TrainingData
from vitling.methods.supervised.settings import BASELINE, make_views, recipe
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: None, data: TrainingData) -> Objective:
    from vitling.methods.supervised.loss import Supervised

    return Supervised(backbone, plan, data.classes, data.multi_label, BASELINE.smoothing)


METHOD = Method("supervised", "learns the classes", recipe, make_views, build, labels="every")
