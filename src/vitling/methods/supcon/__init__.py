"""SupCon (Khosla et al., NeurIPS 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitling.methods.method import Method, TrainingData
from vitling.methods.supcon.settings import SupConConfig, make_views, recipe
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


def build(backbone: Backbone, plan: Plan, config: SupConConfig, data: TrainingData) -> Objective:
    from torch import from_numpy

    from vitling.methods.supcon.loss import SupCon

    if data.labels is None:
        raise ValueError("SupCon needs labels")
    return SupCon(backbone, plan, from_numpy(data.labels), config, data.batch_sizes)


METHOD = Method(
    "supcon",
    "finds the views of the same class among those of the batch",
    recipe,
    make_views,
    build,
    SupConConfig,
    labels="some",
    compares_images=True,
    default_preset="adamw",
)
