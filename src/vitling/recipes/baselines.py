"""The self-supervised baselines of the IDMM paper, as settings: its Table 10.

The table has optimiser, batch, learning rate, weight decay, width and temperature, and a cosine. It leaves open, and
here is alike for all unless a method says otherwise: 112 px, stochastic depth of 0.1 and no decay of biases, norms,
tokens and positions, as IDMM has them; the method's own views; no clipping; a floor of 0. The 800 epochs are those of
Sec. 4.2. Their code was not released with the paper's, so they have one preset.
"""

from __future__ import annotations

from vitling.errors import UserError
from vitling.objectives.config import SimCLRConfig, SupConConfig
from vitling.recipes.idmm import SHORTEST, Preset, Stage
from vitling.training.config import OptimConfig
from vitling.views.policies import simclr as simclr_views


def simclr(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[SimCLRConfig]:
    """Table 10's SimCLR: SGD, batches of 512, a rate of 5e-4 as it is written.

    Open, and taken from SimCLR: its views with colour strength 1, the head, ten epochs of warm-up, a momentum of 0.9.
    Its own optimiser is LARS, with a rate of 0.3 for each 256 images. With SGD the table's rate is low: where the loss
    hardly moves, raise --optim.lr.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 71.1, PVTv2-B0 90.1. After 10,000 images
    of ImageNet, in Table 9: DeiT-Tiny 83.3, and 82.2 without the MLP (--simclr.projection none).
    """
    check_preset("SimCLR", preset)
    return Stage(backbone, epochs, 512, size, _sgd(epochs), SimCLRConfig(), simclr_views(size))


def supcon(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[SupConConfig]:
    """Table 10's SupCon: the numbers are SimCLR's. What is open is taken from SimCLR too, views, head and warm-up, so
    that the two differ in nothing but the labels.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 72.3, PVTv2-B0 91.2.
    """
    check_preset("SupCon", preset)
    return Stage(backbone, epochs, 512, size, _sgd(epochs), SupConConfig(), simclr_views(size))


def check_preset(name: str, preset: Preset) -> None:
    if preset != "paper":
        raise UserError(f"{name} has one preset, paper: IDMM's Table 10. There is no {preset!r}.")


def _sgd(epochs: int) -> OptimConfig:
    warmup = 10 * min(1.0, epochs / SHORTEST)
    return OptimConfig(name="sgd", lr=5e-4, min_lr=0.0, warmup_epochs=warmup, weight_decay=1e-3, clip=0.0)
