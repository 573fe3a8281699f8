"""Supervised classification as pre-training: the baseline of IDMM's Table 6. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitling.methods.idmm_optim import IDMMPreset, idmm_optim
from vitling.methods.method import Method, Recipe
from vitling.ranges import FRACTION
from vitling.views import policies


@dataclass(frozen=True)
class SupervisedConfig:
    """Classification."""

    smoothing: Annotated[float, FRACTION] = 0.1
    """Label smoothing: the share of the target that is spread over all classes."""
    drop_path: Annotated[float, FRACTION] = 0.1
    """Stochastic depth of the last block; it rises linearly from 0 at the first."""
    class_weights: Literal["none", "inverse"] = "none"
    """inverse: weight classes by the inverse of their frequency."""


BASELINE = SupervisedConfig(smoothing=0.1, drop_path=0.1)


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: IDMMPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[SupervisedConfig]:
    """Return IDMM's first stage with labels, all else equal.

    Neither the paper nor the released code says how images were cropped and mixed; here as in fine-tuning: one view,
    mixup and CutMix in alternate epochs.

    The paper's top-1 on Flowers-102 after 10,000 images of ImageNet, supervised and IDMM: PVTv2-B0 92.9 and 93.8,
    PVTv2-B3 90.9 and 95.9, T2T-ViT-7 80.8 and 89.8.
    """
    return Recipe(backbone, epochs, 256, size, idmm_optim(backbone, preset, epochs), BASELINE)


METHOD = Method(
    "supervised", "learns the classes", recipe, lambda config, size: policies.idmm_finetune(size), labels="every"
)
