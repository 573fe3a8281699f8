"""SimCLR (Chen et al., ICML 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitling.methods.method import (
    Method,
    Projection,
    Recipe,
    TrainingData,
    check_above_zero,
    check_choices,
    check_positive,
)
from vitling.methods.optim import Table10Preset, sgd_or_adamw
from vitling.views import policies
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


@dataclass
class SimCLRConfig:
    """SimCLR: find the other view of an image among all views of the batch."""

    projection: Projection = "mlp"
    """mlp: two layers between the features and the loss; none: compare the features themselves."""
    dim: int = 256
    """Output width of the MLP."""
    temperature: float = 0.1
    """Temperature of the softmax over similarities; the lower, the more the nearest images count."""

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_choices("SimCLR", projection=(self.projection, Projection))
        check_positive("SimCLR", dim=self.dim)
        check_above_zero("SimCLR", temperature=self.temperature)


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: Table10Preset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[SimCLRConfig]:
    """Return Table 10's SimCLR: SGD, batches of 512, a learning rate of 5e-4 taken literally; or AdamW.

    Open in the table and taken from SimCLR: views with colour strength 1, the head, ten epochs of warm-up, momentum
    0.9. SimCLR's own optimiser is LARS with a learning rate of 0.3 per 256 images.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 71.1, PVTv2-B0 90.1. After 10,000 images
    of ImageNet, in Table 9: DeiT-Tiny 83.3, and 82.2 without the MLP (--simclr.projection none).
    """
    optim = sgd_or_adamw("SimCLR", preset, epochs, warmup_epochs=10)
    return Recipe(backbone, epochs, 512, size, optim, SimCLRConfig())


def _views(config: SimCLRConfig, size: int) -> Plan:
    return policies.simclr(size)


def _build(backbone: Backbone, plan: Plan, config: SimCLRConfig, data: TrainingData) -> Objective:
    from vitling.methods.simclr.loss import SimCLR

    return SimCLR(backbone, plan, config, data.batch_sizes)


METHOD = Method(
    "simclr",
    "finds the other view of an image among those of the batch",
    recipe,
    _views,
    _build,
    SimCLRConfig,
    compares_images=True,
    default_preset="adamw",
)
