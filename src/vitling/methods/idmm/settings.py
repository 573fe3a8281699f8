"""IDMM (Cao et al., ECCV 2022): settings, views and recipes. No torch.

Preset `paper` follows the paper, and DeiT where the paper only refers to it; `released` follows the released code.
docs/idmm.md compares them. Both train on all images and report the last epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from vitling.methods.idmm_optim import IDMMPreset, idmm_optim
from vitling.methods.method import Method, Projection, Recipe, is_plain_vit
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.ranges import AT_LEAST_1, CROPS, FRACTION_BELOW_1
from vitling.views.plan import Mix, Plan
from vitling.views.policies import idmm_pretrain

SmoothingForm = Literal["others", "all"]
Classifier = Literal["full", "sampled"]


@dataclass(frozen=True)
class IDMMConfig:
    """Instance discrimination with multi-crop and CutMix: every image is its own class."""

    smoothing: Annotated[float, FRACTION_BELOW_1] = 0.1
    """Label smoothing: the share of the target that goes to other images; 0 turns it off."""
    smoothing_form: SmoothingForm = "others"
    """others: spread over all other images (paper); all: over all images, the image itself included (released code)."""
    multi_crop: bool = True
    """Two global and four local crops per image; --idmm.no-multi-crop uses --idmm.crops instead."""
    crops: Annotated[int, CROPS] = 1
    """Crops per image without multi-crop: one in the paper's Eq. 1, two in the released code."""
    cutmix: bool = True
    """Paste a rectangle of another image into each crop; --idmm.no-cutmix does not."""
    projection: Projection = "none"
    """mlp: two layers between the features and the classifier, as in contrastive methods."""
    classifier: Classifier = "full"
    """full: score all classes; sampled: score some of them at each step, for millions of images."""
    negatives: Annotated[int, AT_LEAST_1] = 8192
    """Classes that the sampled classifier scores at each step."""


def idmm_plan(config: IDMMConfig, size: int = 112) -> Plan:
    """Plan the crops. Without multi-crop there are global crops only, one by default: Eq. 1 has one view per image, and
    Sec. 4.4 reads Table 8 as what several views add. The released code cannot train with fewer than two."""
    groups = idmm_pretrain(size).groups
    if not config.multi_crop:
        groups = (replace(groups[0], count=config.crops),)
    if not config.cutmix:
        groups = tuple(replace(group, mix=Mix()) for group in groups)
    return Plan(groups)


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: IDMMPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[IDMMConfig]:
    """Return the first stage of Sec. 4.2: 800 epochs at 112 px.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 79.9 (58.1 without pre-training). After
    800: DeiT-Tiny 83.4, PVTv2-B0 94.6, T2T-ViT-7 90.8.
    """
    config = IDMMConfig()
    if preset == "released":
        config = IDMMConfig(smoothing=0.0 if is_plain_vit(backbone) else 0.1, smoothing_form="all")
    return Recipe(backbone, epochs, 256, size, idmm_optim(backbone, preset, epochs), config)


def finetune_recipe(
    backbone: str = "deit_tiny_patch16_224", preset: IDMMPreset = "paper", epochs: int | None = None, size: int = 224
) -> Recipe[SupervisedConfig]:
    """Return the second stage of Sec. 4.2: 200 epochs at 224 px (800 in Table 3), from the pre-trained weights.

    Above 224 px: 100 more epochs from the fine-tuned weights with their head, at 448 px in the paper. Batch and
    learning rate of that stage are from the released code; the paper does not give them.

    The paper's top-1 on Flowers-102 after 800 epochs at 224 px and 100 at 448: DeiT-Tiny 85.6, PVTv2-B0 95.9,
    T2T-ViT-7 91.7.
    """
    is_large = size > 224
    epochs = epochs or (100 if is_large else 200)
    batch, optim = 256, idmm_optim(backbone, preset, epochs)
    if is_large:
        batch = 32 if backbone.startswith("t2t") else 128
        optim = replace(optim, lr=1.25e-5 if backbone.startswith("t2t") else 5e-5)
    return Recipe(backbone, epochs, batch, size, optim, SupervisedConfig(smoothing=0.1, drop_path=0.1))


def default_preset(backbone: str) -> IDMMPreset:
    """Choose the preset that `train` plans with: the released code's where its learning rate differs from the paper's.

    PVTv2 does better with it (results/finetuning-choices-h200.json); T2T-ViT was not tried.
    """
    return "released" if backbone.startswith(("pvt_v2", "t2t")) else "paper"


METHOD = Method("idmm", "classifies every image as its own class", recipe, idmm_plan, IDMMConfig)
