"""SupCon (Khosla et al., NeurIPS 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitling.methods.idmm_optim import Table10Preset, sgd_or_adamw
from vitling.methods.method import Method, Recipe
from vitling.ranges import AT_LEAST_1, POSITIVE
from vitling.views import policies


@dataclass(frozen=True)
class SupConConfig:
    """SupCon: find the views of images of the same class among all views of the batch."""

    dim: Annotated[int, AT_LEAST_1] = 256
    """Output width of the MLP."""
    temperature: Annotated[float, POSITIVE] = 0.1
    """Temperature of the softmax over similarities; the lower, the more the nearest images count."""


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: Table10Preset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[SupConConfig]:
    """Return Table 10's SupCon, whose numbers are SimCLR's. What the table leaves open (views, head, warm-up) is also
    SimCLR's, so that the two differ only in the labels.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 72.3, PVTv2-B0 91.2.
    """
    optim = sgd_or_adamw("SupCon", preset, epochs, warmup_epochs=10)
    return Recipe(backbone, epochs, 512, size, optim, SupConConfig())


METHOD = Method(
    "supcon",
    "finds the views of the same class among those of the batch",
    recipe,
    lambda config, size: policies.simclr(size),
    SupConConfig,
    labels="some",
    compares_images=True,
    default_preset="adamw",
)
