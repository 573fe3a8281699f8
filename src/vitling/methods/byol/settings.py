"""BYOL (Grill et al., NeurIPS 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitling.methods.idmm_optim import moco_v3_optim
from vitling.methods.method import Method, MethodPreset, Recipe, check_preset
from vitling.ranges import AT_LEAST_1, FRACTION, POSITIVE
from vitling.views import policies

Regions = Literal["none", "mse", "softmax"]


@dataclass(frozen=True)
class BYOLConfig:
    """BYOL: predict how a momentum copy of the network encodes the other view."""

    dim: Annotated[int, AT_LEAST_1] = 256
    """Width of the predicted vectors."""
    hidden: Annotated[int, AT_LEAST_1] = 4096
    """Width of the heads' hidden layers."""
    momentum: Annotated[float, FRACTION] = 0.996
    """Momentum of the copy at the start; it rises to 1."""
    regions: Regions = "none"
    """Predict each region's most similar counterpart too: mse compares vectors, softmax distributions over them."""
    region_weight: Annotated[float, POSITIVE] = 1.0
    """Weight of the loss between regions, if there is one."""


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: MethodPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[BYOLConfig]:
    """Return BYOL with batch, optimiser and warm-up of MoCo v3, its nearest relative in IDMM's Table 10, which has no
    BYOL (two views, a predictor, a momentum copy). Views, heads and momentum are BYOL's. The paper gives no figure."""
    check_preset("BYOL", preset)
    return Recipe(backbone, epochs, 256, size, moco_v3_optim(epochs), BYOLConfig())


METHOD = Method(
    "byol",
    "predicts how a momentum copy encodes the other view",
    recipe,
    lambda config, size: policies.byol(size),
    BYOLConfig,
)
