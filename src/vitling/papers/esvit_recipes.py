"""The runs of the EsViT paper's tables, as recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from vitling.methods import densecl, moco_v2
from vitling.methods.byol import BYOLConfig
from vitling.methods.dino import dino_plan
from vitling.methods.esvit import IMAGENET, EsViTConfig, epochs_for_views, make_optim, recipe
from vitling.methods.method import Recipe

LATER = 200  # the epoch in which the larger models got their region loss
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
    "r-50": "resnet50",
    "swin": SWIN["swin-t"],
    "vil": "vil_tiny",
    "cvt": "cvt_tiny",
    "pvt": "pvt_small",
}


def table_1(name: str = "swin-t", regions: bool = True) -> Recipe[EsViTConfig]:
    """Table 1 by name (`SWIN`): three sizes with windows of 7 and of 14. Swin-T and Swin-S with windows of 7 had both
    losses from the start; the others the view loss to epoch 200 (Swin-S/14: 180), and then both.

    Linear and k-NN with both losses (view loss alone): Swin-T 78.1, 75.7 (77.0, 74.2); S 79.5, 77.7 (79.2, 76.8);
    B 80.4, 78.9 (79.6, 77.7); W=14: T 78.7, 77.0 (77.9, 75.5); S 80.8, 79.1 (79.4, 77.3); B 81.3, 79.3 (80.5, 78.3).
    """
    later = {"swin-t": 0, "swin-s": 0, "swin-s-w14": 180}.get(name, LATER)
    return _set_weights(recipe(SWIN[name]), regions, later)


def table_3(images: int = IMAGENET, regions: bool = True) -> Recipe[EsViTConfig]:
    """Tables 3 and 13: Swin-T on other data. The published epochs are 300 for ImageNet-1K, 50 for OpenImages-v4 (7.5
    million images) and 30 for ImageNet-22K (14.2 million), with 10, 2 and 1 of warm-up; others see as many views.
    WebVision-v1 (2.4 million) is not in Table 13; its released weights are those of epoch 150.

    Batches are of 1024: the table's figures of the view loss alone are those of released weights with that batch, and
    for ImageNet-1K those of Table 4. ImageNet-1K with both losses is the release's run with batches of 512.

    Linear and k-NN on ImageNet-1K with both losses (view loss alone): ImageNet-1K 78.0, 75.7 (77.1, 73.7); WebVision
    75.9, 71.2 (75.4, 69.4); OpenImages 70.6, 62.0 (69.6, 60.3); ImageNet-22K 75.0, 67.9 (73.5, 66.1).
    """
    published = {IMAGENET: (300, 10.0), 2_400_000: (150, 5.0), 7_500_000: (50, 2.0), 14_200_000: (30, 1.0)}
    plain = recipe()
    crops = dino_plan(plain.objective, plain.size).crops
    same_views = epochs_for_views(300 * IMAGENET * crops, images, crops)
    epochs, warmup = published.get(images, (same_views, same_views / 30))
    batch = 512 if regions and images == IMAGENET else 1024
    return _set_weights(replace(plain, epochs=epochs, batch=batch, optim=make_optim(batch, epochs, warmup)), regions)


def table_4(name: str = "swin", regions: bool = True) -> Recipe[EsViTConfig]:
    """Table 4 by name (`OTHERS`): networks of four stages (2-2-6-2 blocks) and two for reference, batches of 1024. With
    both losses the released ones had the view loss alone to epoch 200.

    Linear and k-NN with both losses (view loss alone): R-50 75.7, 71.2 (75.0, 69.3); Swin 77.6, 75.4 (77.1, 73.7);
    ViL 77.5, 74.5 (77.3, 73.9); CvT 78.5, 76.7 (77.6, 74.8); PvT 76.3, 72.9 (75.4, 72.0); DeiT (75.9, 73.2).
    """
    stage = replace(recipe(OTHERS[name]), batch=1024, optim=make_optim(1024, 300))
    return _set_weights(stage, regions, LATER)


def table_5(regions: bool = True) -> Recipe[EsViTConfig]:
    """Table 5: ResNet-50, two views, 200 epochs; MoCo v2 and DenseCL are the contrastive pair beside it.

    Linear and k-NN: 69.9 and 61.7, with the view loss alone 69.2 and 59.9. MoCo v2 67.5 and 55.6, DenseCL 63.6, 48.6.
    """
    stage = recipe(OTHERS["r-50"], epochs=200)
    return _set_weights(replace(stage, objective=replace(stage.objective, local_crops=0)), regions)


def contrastive(dense: bool = False) -> Recipe:
    """Table 5's other pair: MoCo v2 and DenseCL with ResNet-50, two views, 200 epochs. These are MoCo v2's own settings
    for ImageNet-1K, which DenseCL took over: SGD, batches of 256, a rate of 0.03, a weight decay of 1e-4, a cosine, a
    queue of 65,536, width 128, no stochastic depth.

    Linear and k-NN: MoCo v2 67.5 and 55.6, DenseCL 63.6 and 48.6.
    """
    stage: Recipe = (densecl if dense else moco_v2).recipe(OTHERS["r-50"], epochs=200, size=224)
    optim = replace(stage.optim, lr=0.03, weight_decay=1e-4)
    objective = replace(stage.objective, dim=128, queue=65_536)
    return replace(stage, batch=256, optim=optim, objective=objective, drop_path=0.0)


def byol(regions: Literal["none", "mse", "softmax"] = "none") -> Recipe[BYOLConfig]:
    """Sec. 4.3: BYOL, alone and with regions, after 50 epochs. The network is not said; here it is that of the other
    ablations. Optimiser and batch are those of EsViT: BYOL's own, LARS with batches of 4,096, are for ResNets.

    k-NN: 33.1, with regions by a softmax 37.2, by their distance 34.9.
    """
    optim = replace(make_optim(512, 50), lr=1e-3, min_lr=0.0)
    return Recipe(SWIN["swin-t"], 50, 512, 224, optim, BYOLConfig(regions=regions), 0.1)


def _set_weights(stage: Recipe[EsViTConfig], regions: bool, region_from: int = 0) -> Recipe[EsViTConfig]:
    changes = {"region_from": region_from} if regions else {"view_weight": 1.0, "region_weight": 0.0}
    return replace(stage, objective=replace(stage.objective, **changes))
