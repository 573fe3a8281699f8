"""MoCo v3 (Chen, Xie and He, ICCV 2021): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitling.methods.idmm_optim import moco_v3_optim
from vitling.methods.method import Method, MethodPreset, Recipe, check_preset
from vitling.ranges import AT_LEAST_1, FRACTION, POSITIVE
from vitling.views import policies


@dataclass(frozen=True)
class MoCoV3Config:
    """MoCo v3: find the other view of an image, encoded by a momentum copy, among those of the batch."""

    dim: Annotated[int, AT_LEAST_1] = 256
    """Width of queries and keys."""
    hidden: Annotated[int, AT_LEAST_1] = 4096
    """Width of the heads' hidden layers."""
    temperature: Annotated[float, POSITIVE] = 0.2
    """Temperature of the softmax; lower is sharper."""
    momentum: Annotated[float, FRACTION] = 0.99
    """Momentum of the key encoder at the start; it rises to 1."""
    frozen_patches: bool = True
    """Keep a plain ViT's patch projection at its random initialisation, which is more stable;
    --moco-v3.no-frozen-patches trains it."""


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


METHOD = Method(
    "moco-v3",
    "finds the other view of an image, encoded by a momentum copy, among those of the batch",
    recipe,
    lambda config, size: policies.moco_v3(size),
    MoCoV3Config,
    compares_images=True,
)
