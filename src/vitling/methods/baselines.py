"""The self-supervised baselines of the IDMM paper, as settings: its Table 10.

The table has optimiser, batch, learning rate, weight decay, width and temperature, and a cosine. It leaves open, and
here is alike for all unless a method says otherwise: 112 px, stochastic depth of 0.1 and no decay of biases, norms,
tokens and positions, as IDMM has them; the method's own views; no clipping; a floor of 0. The 800 epochs are those of
Sec. 4.2. Their code was not released with the paper's, so none has a preset `released`. Three of them have SGD at 5e-4
there, by which a DeiT-Tiny learns little: results/idmm-t2.json, and with `adamw`, all of IDMM's optimiser,
idmm-t2-causes.json. That preset is the usual one of the three, and of DenseCL, which has MoCo v2's settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from vitling.errors import UserError
from vitling.methods import idmm
from vitling.methods.idmm import SHORTEST, Stage
from vitling.objectives.config import (
    BYOLConfig,
    DenseCLConfig,
    DINOConfig,
    MoCoV2Config,
    MoCoV3Config,
    SimCLRConfig,
    SupConConfig,
    dino_plan,
)
from vitling.training.config import OptimConfig
from vitling.views import policies

Preset = Literal["paper", "adamw"]


def simclr(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[SimCLRConfig]:
    """Table 10's SimCLR: SGD, batches of 512, a rate of 5e-4 as it is written; or AdamW.

    Open, and taken from SimCLR: its views with colour strength 1, the head, ten epochs of warm-up, a momentum of 0.9.
    Its own optimiser is LARS, with a rate of 0.3 for each 256 images.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 71.1, PVTv2-B0 90.1. After 10,000 images
    of ImageNet, in Table 9: DeiT-Tiny 83.3, and 82.2 without the MLP (--simclr.projection none).
    """
    optim = _sgd_or_adamw("SimCLR", preset, epochs, warmup_epochs=10)
    return Stage(backbone, epochs, 512, size, optim, SimCLRConfig(), policies.simclr(size))


def supcon(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[SupConConfig]:
    """Table 10's SupCon: the numbers are SimCLR's. What is open is taken from SimCLR too, views, head and warm-up, so
    that the two differ in nothing but the labels.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 72.3, PVTv2-B0 91.2.
    """
    optim = _sgd_or_adamw("SupCon", preset, epochs, warmup_epochs=10)
    return Stage(backbone, epochs, 512, size, optim, SupConConfig(), policies.simclr(size))


def moco_v2(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[MoCoV2Config]:
    """Table 10's MoCo v2: SGD, batches of 256, a rate of 5e-4 as it is written, a queue of 2048 keys; or AdamW.

    Open, and taken from MoCo v2: its views, the head, the momentum of 0.999 of its key encoder and of 0.9 of SGD, no
    warm-up of SGD. Its own rate is 0.03. The queue is longer than Flowers-102 has training images (2,040):
    --moco-v2.mask-own leaves an image's own keys out.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 61.8.
    """
    optim = _sgd_or_adamw("MoCo v2", preset, epochs, warmup_epochs=0)
    return Stage(backbone, epochs, 256, size, optim, MoCoV2Config(), policies.moco_v2(size))


def densecl(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[DenseCLConfig]:
    """DenseCL, which Table 10 does not have: all that it shares with MoCo v2 is MoCo v2's there, views and queues too,
    so that the two differ in the regions alone, as in Table 5 of EsViT. Half of the loss is that of regions (its own).

    EsViT's figures for ResNet-50 after 200 epochs on ImageNet-1K, linear and k-NN: 63.6 and 48.6; MoCo v2 67.5, 55.6.
    """
    stage = moco_v2(backbone, preset, epochs, size)
    return Stage(backbone, epochs, stage.batch, size, stage.optim, DenseCLConfig(), stage.plan)


def moco_v3(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[MoCoV3Config]:
    """Table 10's MoCo v3: AdamW, batches of 256, a rate of 1.5e-4, a weight decay of 0.1.

    Open, and taken from MoCo v3: its views, heads, momentum and frozen patch projection, and a warm-up over the same
    share of the run (40 of 300 epochs).

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 67.0.
    """
    check_preset("MoCo v3", preset)
    return Stage(backbone, epochs, 256, size, _moco_v3_optim(epochs), MoCoV3Config(), policies.moco_v3(size))


def byol(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[BYOLConfig]:
    """BYOL, which Table 10 does not have: batch, optimiser and warm-up are those of MoCo v3, its nearest relative there
    (two views, a predictor, a momentum copy). Views, heads and momentum are BYOL's own. The paper has no figure."""
    check_preset("BYOL", preset)
    return Stage(backbone, epochs, 256, size, _moco_v3_optim(epochs), BYOLConfig(), policies.byol(size))


def dino(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[DINOConfig]:
    """Table 10's DINO: AdamW, batches of 512, a rate of 5e-4, a weight decay of 0.04 (DINO's own rises to 0.4).

    Open, and taken from DINO: two global and eight local views, these at 3/7 of the size (48 of 112 px, as 96 of 224),
    the head, teacher and centre; gradients clipped at 3 for each tensor; a floor of 1e-6; a warm-up over the same share
    of the run (10 of 300 epochs).

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 64.1.
    """
    check_preset("DINO", preset)
    optim = OptimConfig(lr=5e-4, min_lr=1e-6, warmup_epochs=epochs / 30, weight_decay=0.04, clip=3.0, clip_per="tensor")
    return Stage(backbone, epochs, 512, size, optim, DINOConfig(), dino_plan(DINOConfig(), size))


def check_preset(name: str, preset: Preset) -> None:
    if preset != "paper":
        raise UserError(f"{name} has one preset, paper. There is no {preset!r}.")


def _sgd_or_adamw(name: str, preset: Preset, epochs: int, warmup_epochs: float) -> OptimConfig:
    """`warmup_epochs` are SGD's, less in a short run."""
    if preset == "adamw":
        return replace(idmm.pretrain(epochs=epochs).optim, name="adamw")
    if preset != "paper":
        raise UserError(f"{name} has two presets: paper, IDMM's Table 10 with its SGD, and adamw. No {preset!r}.")
    warmup = warmup_epochs * min(1.0, epochs / SHORTEST)
    return OptimConfig(name="sgd", lr=5e-4, min_lr=0.0, warmup_epochs=warmup, weight_decay=1e-3, clip=0.0)


def _moco_v3_optim(epochs: int) -> OptimConfig:
    return OptimConfig(lr=1.5e-4, min_lr=0.0, warmup_epochs=epochs * 40 / 300, weight_decay=0.1, clip=0.0)
