"""LeJEPA (Balestriero and LeCun, arXiv 2511.08544)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.lejepa.settings import LeJEPAConfig, lejepa_plan, recipe
from vitling.methods.method import Method, TrainingData
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: LeJEPAConfig, data: TrainingData) -> Objective:
    from vitling.methods.lejepa.loss import LeJEPA

    return LeJEPA(backbone, plan, config, data.seed)


METHOD = Method(
    "lejepa",
    "brings the views of an image together while all embeddings follow a standard normal",
    recipe,
    lejepa_plan,
    build,
    LeJEPAConfig,
    compares_images=True,
)
