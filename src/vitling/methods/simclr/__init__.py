"""SimCLR (Chen et al., ICML 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.method import Method, TrainingData
from vitling.methods.simclr.settings import SimCLRConfig, make_views, recipe
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: SimCLRConfig, data: TrainingData) -> Objective:
    from vitling.methods.simclr.loss import SimCLR

    return SimCLR(backbone, plan, config, data.batch_sizes)


METHOD = Method(
    "simclr",
    "finds the other view of an image among those of the batch",
    recipe,
    make_views,
    build,
    SimCLRConfig,
    compares_images=True,
    default_preset="adamw",
)
