"""SupCon (Khosla et al., NeurIPS 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitling.methods.method import Method, Recipe, TrainingData, check_above_zero, check_positive
from vitling.methods.optim import Table10Preset, sgd_or_adamw
from vitling.views import policies
from vitling.views.plan import Plan

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone
    from vitling.objectives.objective import Objective


@dataclass
class SupConConfig:
    """SupCon: find the views of images of the same class among all views of the batch."""

    dim: int = 256
    """Output width of the MLP."""
    temperature: float = 0.1
    """Temperature of the softmax over similarities; the lower, the more the nearest images count."""

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_positive("SupCon", dim=self.dim)
        check_above_zero("SupCon", temperature=self.temperature)


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: Table10Preset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[SupConConfig]:
    """Return Table 10's SupCon, whose numbers are SimCLR's. What the table leaves open (views, head, warm-up) is also
    SimCLR's, so that the two differ only in the labels.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 72.3, PVTv2-B0 91.2.
    """
    optim = sgd_or_adamw("SupCon", preset, epochs, warmup_epochs=10)
    return Recipe(backbone, epochs, 512, size, optim, SupConConfig())


def _views(config: SupConConfig, size: int) -> Plan:
    return policies.simclr(size)


def _build(backbone: Backbone, plan: Plan, config: SupConConfig, data: TrainingData) -> Objective:
    from torch import from_numpy

    from vitling.methods.supcon.loss import SupCon

    if data.labels is None:
        raise ValueError("SupCon needs labels")
    return SupCon(backbone, plan, from_numpy(data.labels), config, data.batch_sizes)


METHOD = Method(
    "supcon",
    "finds the views of the same class among those of the batch",
    recipe,
    _views,
    _build,
    SupConConfig,
    labels="some",
    compares_images=True,
    default_preset="adamw",
)
