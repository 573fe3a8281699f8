"""DenseCL (Wang et al., CVPR 2021): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from vitling.methods.idmm_optim import Table10Preset
from vitling.methods.method import Method, Recipe
from vitling.methods.moco_v2 import settings as moco_v2
from vitling.ranges import FRACTION
from vitling.views import policies


@dataclass(frozen=True)
class DenseCLConfig(moco_v2.MoCoV2Config):
    """DenseCL: MoCo v2, plus the same task for the most similar regions, with a queue of other images' regions."""

    dense_weight: Annotated[float, FRACTION] = 0.5
    """Weight of the loss between regions; the loss between whole views has the rest."""


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: Table10Preset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[DenseCLConfig]:
    """Return MoCo v2's recipe with the region loss at a weight of 0.5 (DenseCL's own). Table 10 has no DenseCL; here
    the two differ only in the regions, as in Table 5 of EsViT.

    EsViT's figures for ResNet-50 after 200 epochs on ImageNet-1K, linear and k-NN: 63.6 and 48.6; MoCo v2 67.5, 55.6.
    """
    base = moco_v2.recipe(backbone, preset, epochs, size)
    return Recipe(backbone, epochs, base.batch, size, base.optim, DenseCLConfig())


METHOD = Method(
    "densecl",
    "finds the other view of an image, and its regions, among queues of keys",
    recipe,
    lambda config, size: policies.moco_v2(size),
    DenseCLConfig,
    default_preset="adamw",
    remarks=moco_v2.warn_of_batch_norm,
)
