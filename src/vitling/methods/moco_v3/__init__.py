"""MoCo v3 (Chen, Xie and He, ICCV 2021): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitling.methods.method import (
    Method,
    MethodPreset,
    Recipe,
    TrainingData,
    check_above_zero,
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


@dataclass
class MoCoV3Config:
    """MoCo v3: find the other view of an image, encoded by a momentum copy, among those of the batch."""

    dim: int = 256
    """Width of queries and keys."""
    hidden: int = 4096
    """Width of the heads' hidden layers."""
    temperature: float = 0.2
    """Temperature of the softmax; lower is sharper."""
    momentum: float = 0.99
    """Momentum of the key encoder at the start; it rises to 1."""
    frozen_patches: bool = True
    """Keep the patch projection of a plain ViT at its random initialisation (more stable)."""

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_positive("MoCo v3", dim=self.dim, hidden=self.hidden)
        check_fractions("MoCo v3", momentum=self.momentum)
        check_above_zero("MoCo v3", temperature=self.temperature)


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: MethodPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[MoCoV3Config]:
    """Return Table 10's MoCo v3: AdamW, batches of 256, a learning rate of 1.5e-4, a weight decay of 0.1.

    Open in the table and taken from MoCo v3: views, heads, momentum, frozen patch projection, and a warm-up over the
    same fraction of the run (40 of 300 epochs).

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 67.0.
    """
    check_preset("MoCo v3", preset)
    return Recipe(backbone, epochs, 256, size, moco_v3_optim(epochs), MoCoV3Config())


def _views(config: MoCoV3Config, size: int) -> Plan:
    return policies.moco_v3(size)


def _build(backbone: Backbone, plan: Plan, config: MoCoV3Config, data: TrainingData) -> Objective:
    from vitling.methods.moco_v3.loss import MoCoV3

    return MoCoV3(backbone, plan, config, data.batch_sizes)


METHOD = Method(
    "moco-v3",
    "finds the other view of an image, encoded by a momentum copy, among those of the batch",
    recipe,
    _views,
    _build,
    MoCoV3Config,
    compares_images=True,
)
