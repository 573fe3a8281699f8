"""BYOL (Grill et al., NeurIPS 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vitling.methods.method import (
    Method,
    MethodPreset,
    Recipe,
    TrainingData,
    check_above_zero,
    check_choices,
    check_fractions,
    check_positive,
    check_preset,
)
from vitling.methods.optim import moco_v3_optim
from vitling.views import policies
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective

Regions = Literal["none", "mse", "softmax"]


@dataclass
class BYOLConfig:
    """BYOL: predict how a momentum copy of the network encodes the other view."""

    dim: int = 256
    """Width of the predicted vectors."""
    hidden: int = 4096
    """Width of the heads' hidden layers."""
    momentum: float = 0.996
    """Momentum of the copy at the start; it rises to 1."""
    regions: Regions = "none"
    """Predict each region's most similar counterpart too: mse compares vectors, softmax distributions over them."""
    region_weight: float = 1.0
    """Weight of the loss between regions, if there is one."""

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_choices("BYOL", regions=(self.regions, Regions))
        check_above_zero("BYOL", region_weight=self.region_weight)
        check_positive("BYOL", dim=self.dim, hidden=self.hidden)
        check_fractions("BYOL", momentum=self.momentum)


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: MethodPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[BYOLConfig]:
    """Return BYOL with batch, optimiser and warm-up of MoCo v3, its nearest relative in IDMM's Table 10, which has no
    BYOL (two views, a predictor, a momentum copy). Views, heads and momentum are BYOL's. The paper gives no figure."""
    check_preset("BYOL", preset)
    return Recipe(backbone, epochs, 256, size, moco_v3_optim(epochs), BYOLConfig())


def _views(config: BYOLConfig, size: int) -> Plan:
    return policies.byol(size)


def _build(backbone: Backbone, plan: Plan, config: BYOLConfig, data: TrainingData) -> Objective:
    from vitling.methods.byol.loss import BYOL

    return BYOL(backbone, plan, config)


METHOD = Method("byol", "predicts how a momentum copy encodes the other view", recipe, _views, _build, BYOLConfig)
