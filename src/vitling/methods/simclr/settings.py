"""SimCLR (Chen et al., ICML 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitling.methods.idmm_optim import Table10Preset, sgd_or_adamw
from vitling.methods.method import Method, Projection, Recipe
from vitling.ranges import AT_LEAST_1, POSITIVE
from vitling.views import policies


@dataclass(frozen=True)
class SimCLRConfig:
    """SimCLR: find the other view of an image among all views of the batch."""

    projection: Projection = "mlp"
    """mlp: two layers between the features and the loss; none: compare the features themselves."""
    dim: Annotated[int, AT_LEAST_1] = 256
    """Output width of the MLP."""
    temperature: Annotated[float, POSITIVE] = 0.1
    """Temperature of the softmax over similarities; the lower, the more the nearest images count."""


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


METHOD = Method(
    "simclr",
    "finds the other view of an image among those of the batch",
    recipe,
    lambda config, size: policies.simclr(size),
    SimCLRConfig,
    compares_images=True,
    default_preset="adamw",
)
