"""The runs of the IDMM paper, as settings: pre-training on single images as classes, then fine-tuning on the labels.

"paper" is what the paper says, with DeiT's habits where it says only that it follows them; "released" what the released
code does. docs/idmm.md has them side by side. Both train on everything and report the last epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from vitling.backbones.names import find_entry
from vitling.errors import UserError
from vitling.objectives.config import IDMMConfig, SupervisedConfig, idmm_plan
from vitling.training.config import OptimConfig
from vitling.views.config import Plan
from vitling.views.policies import idmm_finetune

Preset = Literal["paper", "released"]

NARROWEST = 192  # DeiT-Tiny's tokens: of the ViTs that the presets' rates are for
SHORTEST = 100  # epochs of the shortest published stage; a shorter one warms up in the same share of them


Objective = TypeVar("Objective")  # its settings


@dataclass(frozen=True)
class Stage(Generic[Objective]):
    """Half of a run: everything but the images."""

    backbone: str
    epochs: int
    batch: int
    size: int
    optim: OptimConfig
    objective: Objective
    plan: Plan
    drop_path: float = 0.1
    drop_last: bool = False

    def lr_for(self, batch: int, optimiser: str | None = None) -> float:
        """The stage's own rate is for its own batch. SGD's goes in proportion; AdamW's by the root, for its step hardly
        depends on how large the gradient is (Malladi et al., NeurIPS 2022), and for a ViT that is narrower than
        DeiT-Tiny it is larger by as much: results/rates-digits.json."""
        own, share = self.optim.peak_lr(self.batch), batch / self.batch
        if (optimiser or self.optim.name) == "sgd":
            return own * share
        known = find_entry(self.backbone)
        narrower = max(1.0, NARROWEST / known.dim) if known and _plain(self.backbone) else 1.0
        return own * math.sqrt(share) * narrower


def pretrain(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage[IDMMConfig]:
    """Sec. 4.2, first stage: 800 epochs at 112 px.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 79.9 (58.1 without pre-training). After
    800: DeiT-Tiny 83.4, PVTv2-B0 94.6, T2T-ViT-7 90.8.
    """
    optim = _optim(backbone, preset, epochs)
    objective = IDMMConfig()
    if preset == "released":
        objective = IDMMConfig(smoothing=0.0 if _plain(backbone) else 0.1, smoothing_form="all")
    return Stage(backbone, epochs, 256, size, optim, objective, idmm_plan(objective, size))


def supervised(
    backbone: str = "deit_tiny_patch16_224", preset: Preset = "paper", epochs: int = 800, size: int = 112
) -> Stage:
    """The baseline of Table 6: the first stage with labels, all else alike. How its images were cut and mixed is in
    neither the paper nor the released code; here as in fine-tuning, which has labels too: one view, mixed in turns.

    The paper's top-1 on Flowers-102 from 10,000 images of ImageNet, supervised and by IDMM: PVTv2-B0 92.9 and 93.8,
    PVTv2-B3 90.9 and 95.9, T2T-ViT-7 80.8 and 89.8.
    """
    objective = SupervisedConfig(smoothing=0.1, drop_path=0.1)
    return Stage(backbone, epochs, 256, size, _optim(backbone, preset, epochs), objective, idmm_finetune(size))


def finetune(
    backbone: str = "deit_tiny_patch16_224",
    preset: Preset = "paper",
    epochs: int | None = None,
    size: int = 224,
) -> Stage[SupervisedConfig]:
    """Sec. 4.2, second stage: 200 epochs at 224 px (800 in Table 3), from the pre-trained weights. At 448 px 100 more,
    from the weights fine-tuned at 224 with their head; of its batch and learning rate only the released code knows.

    The paper's top-1 on Flowers-102 after 800 epochs at 224 px and then 100 at 448: DeiT-Tiny 85.6, PVTv2-B0 95.9,
    T2T-ViT-7 91.7.
    """
    large = size > 224
    epochs = epochs or (100 if large else 200)
    batch, optim = 256, _optim(backbone, preset, epochs)
    if large:
        batch = 32 if backbone.startswith("t2t") else 128
        optim = replace(optim, lr=1.25e-5 if backbone.startswith("t2t") else 5e-5)
    objective = SupervisedConfig(smoothing=0.1, drop_path=0.1)
    return Stage(backbone, epochs, batch, size, optim, objective, idmm_finetune(size))


def usual_preset(backbone: str) -> Preset:
    """Whose settings `train` plans: those of the released code where its rate is not the paper's. PVTv2 does better
    with it (results/finetuning-choices-h200.json); T2T-ViT was not tried."""
    return "released" if backbone.startswith(("pvt_v2", "t2t")) else "paper"


def _optim(backbone: str, preset: Preset, epochs: int) -> OptimConfig:
    if preset not in ("paper", "released"):
        raise UserError(f"There is no preset {preset!r} of IDMM: paper, released.")
    shorter = min(1.0, epochs / SHORTEST)
    if preset == "paper":  # its warm-up and floor are DeiT's
        return OptimConfig(lr=5e-4, min_lr=1e-5, warmup_epochs=5 * shorter, warmup_lr=1e-6, weight_decay=1e-3, clip=0.0)
    lr, warmup = (5e-4, 2) if _plain(backbone) else (1e-3, 10)
    return OptimConfig(
        lr=lr,
        min_lr=0.0,
        warmup_epochs=warmup * shorter,
        cosine_from="idmm",
        weight_decay=1e-3,
        decay_all=True,
        clip=0.0,
    )


def _plain(backbone: str) -> bool:
    """DeiT has one set of released numbers, PVTv2 and T2T-ViT have the other. Chosen here: a ViT has that of DeiT, the
    same network; all others have the second."""
    return backbone.startswith(("deit", "vit"))
