"""IDMM's optimiser and warm-up, and those of the baselines in its Table 10. No torch.

IDMM's Table 10 gives its baselines an optimiser, batch, learning rate, weight decay, width and temperature, and a
cosine schedule. What it leaves open is the same for all of them unless a method says otherwise: 112 px, stochastic
depth of 0.1 and no weight decay for biases, norms, tokens and positions, as in IDMM; each method's own views; no
clipping; a final learning rate of 0. The 800 epochs are from Sec. 4.2. The authors did not release this code, so there
is no preset `released`.

Three of them use SGD at 5e-4 there, with which a DeiT-Tiny learns little (results/idmm-t2.json). Preset `adamw` has
IDMM's optimiser instead (results/idmm-t2-causes.json); it is the default for the three and for DenseCL, which has MoCo
v2's settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from vitling.methods.method import check_preset, is_plain_vit
from vitling.training.config import OptimConfig

IDMMPreset = Literal["paper", "released"]
Table10Preset = Literal["paper", "adamw"]
SHORTEST = 100  # epochs of IDMM's shortest published run; a shorter one scales its warm-up down


def idmm_optim(backbone: str, preset: IDMMPreset, epochs: int) -> OptimConfig:
    """Return the optimiser of both of IDMM's stages.

    The released code has two sets of numbers, one for DeiT and one for PVTv2 and T2T-ViT. Chosen here: every plain ViT
    takes DeiT's, all other networks take the second.
    """
    check_preset("IDMM", preset, ("paper", "released"))
    shorter = min(1.0, epochs / SHORTEST)
    if preset == "paper":  # warm-up and final learning rate are DeiT's
        return OptimConfig(lr=5e-4, min_lr=1e-5, warmup_epochs=5 * shorter, warmup_lr=1e-6, weight_decay=1e-3, clip=0.0)
    lr, warmup = (5e-4, 2) if is_plain_vit(backbone) else (1e-3, 10)
    return OptimConfig(
        lr=lr,
        min_lr=0.0,
        warmup_epochs=warmup * shorter,
        cosine_from="idmm",
        weight_decay=1e-3,
        decay_all=True,
        clip=0.0,
    )


def sgd_or_adamw(method: str, preset: Table10Preset, epochs: int, warmup_epochs: float) -> OptimConfig:
    """Return the optimiser of a preset. `warmup_epochs` is for SGD; a short run scales it down."""
    check_preset(method, preset, ("paper", "adamw"))
    if preset == "adamw":
        return replace(idmm_optim("", "paper", epochs), name="adamw")
    warmup = warmup_epochs * min(1.0, epochs / SHORTEST)
    return OptimConfig(name="sgd", lr=5e-4, min_lr=0.0, warmup_epochs=warmup, weight_decay=1e-3, clip=0.0)


def moco_v3_optim(epochs: int) -> OptimConfig:
    """Return Table 10's AdamW for MoCo v3, with a warm-up over the same fraction of the run as MoCo v3's own."""
    return OptimConfig(lr=1.5e-4, min_lr=0.0, warmup_epochs=epochs * 40 / 300, weight_decay=0.1, clip=0.0)
