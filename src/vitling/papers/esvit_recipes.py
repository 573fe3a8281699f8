"""Recipes of the EsViT paper's tables; the figures are in esvit.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from vitling.methods.byol.settings import BYOLConfig
from vitling.methods.densecl import settings as densecl
from vitling.methods.dino.settings import dino_plan
from vitling.methods.esvit.settings import IMAGENET, EsViTConfig, make_optim, recipe
from vitling.methods.method import Recipe, epochs_for_views
from vitling.methods.moco_v2 import settings as moco_v2

LATER = 200  # epoch in which the larger models got their region loss
SWIN = {
    "swin-t": "swin_tiny_patch4_window7_224",
    "swin-s": "swin_small_patch4_window7_224",
    "swin-b": "swin_base_patch4_window7_224",
    "swin-t-w14": "swin_tiny_patch4_window7_224.window14",
    "swin-s-w14": "swin_small_patch4_window7_224.window14",
    "swin-b-w14": "swin_base_patch4_window7_224.window14",
}
OTHERS = {
    "deit": "deit_small_patch16_224",
    "r-50": "resnet50.torchvision",
    "swin": SWIN["swin-t"],
    "vil": "vil_tiny",
    "cvt": "cvt_tiny",
    "pvt": "pvt_small",
}


def table_1(name: str = "swin-t", regions: bool = True) -> Recipe[EsViTConfig]:
    """Make a recipe of Table 1 by its name in `SWIN`: three sizes with windows of 7 and 14.

    Swin-T and Swin-S with windows of 7 had both losses from the start, the others from epoch 200 on (Swin-S/14: 180).
    """
    later = {"swin-t": 0, "swin-s": 0, "swin-s-w14": 180}.get(name, LATER)
    return _set_weights(recipe(SWIN[name]), regions, later)


def table_3(images: int = IMAGENET, regions: bool = True) -> Recipe[EsViTConfig]:
    """Make a recipe of Tables 3 and 13: Swin-T on other data.

    Published epochs are 300 for ImageNet-1K, 50 for OpenImages-v4 (7.5 million images) and 30 for ImageNet-22K (14.2
    million), with 10, 2 and 1 of warm-up; other data see as many views. WebVision-v1 (2.4 million) is not in Table 13;
    its released weights are those of epoch 150. Batches are 1024, as those of the released weights with the view loss
    alone; ImageNet-1K with both losses is the release's run with batches of 512.
    """
    published = {IMAGENET: (300, 10.0), 2_400_000: (150, 5.0), 7_500_000: (50, 2.0), 14_200_000: (30, 1.0)}
    plain = recipe()
    crops = dino_plan(plain.objective, plain.size).crops
    same_views = epochs_for_views(300 * IMAGENET * crops, images, crops)
    epochs, warmup = published.get(images, (same_views, same_views / 30))
    batch = 512 if regions and images == IMAGENET else 1024
    return _set_weights(replace(plain, epochs=epochs, batch=batch, optim=make_optim(batch, epochs, warmup)), regions)


def table_4(name: str = "swin", regions: bool = True) -> Recipe[EsViTConfig]:
    """Make a recipe of Table 4 by its name in `OTHERS`: batches of 1024, and region losses from epoch 200 on."""
    stage = replace(recipe(OTHERS[name]), batch=1024, optim=make_optim(1024, 300))
    return _set_weights(stage, regions, LATER)


def table_5(regions: bool = True) -> Recipe[EsViTConfig]:
    """Make EsViT's recipe of Table 5: ResNet-50, two views, 200 epochs."""
    stage = recipe(OTHERS["r-50"], epochs=200)
    return _set_weights(replace(stage, objective=replace(stage.objective, local_crops=0)), regions)


def contrastive(dense: bool = False) -> Recipe:
    """Make the contrastive recipes of Table 5, MoCo v2 and DenseCL: ResNet-50, two views, 200 epochs.

    These are MoCo v2's own settings for ImageNet-1K, which DenseCL uses too: SGD, batches of 256, learning rate 0.03,
    weight decay 1e-4, a cosine, a queue of 65,536, width 128, no stochastic depth.
    """
    stage: Recipe = (densecl if dense else moco_v2).recipe(OTHERS["r-50"], epochs=200, size=224)
    optim = replace(stage.optim, lr=0.03, weight_decay=1e-4)
    objective = replace(stage.objective, dim=128, queue=65_536)
    return replace(stage, batch=256, optim=optim, objective=objective, drop_path=0.0)


def byol(regions: Literal["none", "mse", "softmax"] = "none") -> Recipe[BYOLConfig]:
    """Make the BYOL recipes of Sec. 4.3, alone and with regions, for 50 epochs.

    The paper does not name the network; here it is that of the other ablations. Optimiser and batch are EsViT's:
    BYOL's own, LARS with batches of 4,096, are for ResNets.
    """
    optim = replace(make_optim(512, 50), lr=1e-3, min_lr=0.0)
    return Recipe(SWIN["swin-t"], 50, 512, 224, optim, BYOLConfig(regions=regions), 0.1)


def _set_weights(stage: Recipe[EsViTConfig], regions: bool, region_from: int = 0) -> Recipe[EsViTConfig]:
    changes = {"region_from": region_from} if regions else {"view_weight": 1.0, "region_weight": 0.0}
    return replace(stage, objective=replace(stage.objective, **changes))
