"""The runs of the EsViT paper, as settings; and the same method for a few thousand images.

The paper has its settings in C.3 and Table 13; what it leaves open is as in its released code, which it does not
contradict: weight decay from 0.04 to 0.4, gradients clipped at 3 for each tensor, temperatures, crops, stochastic
depth. The released code decays relative-position tables too; here they are spared, as everywhere in vitling. And it
trains the lengths of the prototypes, which are 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from vitling.errors import UserError
from vitling.methods import baselines
from vitling.methods.idmm import Preset, Stage
from vitling.objectives.config import BYOLConfig, EsViTConfig, dino_plan
from vitling.training.config import OptimConfig
from vitling.views import policies

IMAGENET = 1_281_167  # images
MANY = 100_000  # from so many on, temperature and matching are the paper's
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


def pretrain(
    backbone: str = SWIN["swin-t"], preset: Preset = "paper", epochs: int = 300, size: int = 224
) -> Stage[EsViTConfig]:
    """C.3: AdamW, batches of 512, a rate of 5e-4 for each 256 images, 10 of 300 epochs of warm-up, a cosine; two global
    and eight local crops. `vitling pretrain --method esvit` has these settings as `for_images` fits them to the data.

    The paper's top-1 on ImageNet-1K, linear and k-NN, after 300 epochs of Swin-T: 78.1 and 75.7, with the view loss
    alone 77.0 and 74.2.
    """
    if preset != "paper":
        raise UserError(f"EsViT has one preset, paper: its settings are those of the released code. No {preset!r}.")
    objective = EsViTConfig(prototypes=65_536, teacher_temperature=0.07, match="argmax")
    optim = _optim(512, epochs)
    return Stage(backbone, epochs, 512, size, optim, objective, dino_plan(objective, size), _drop_path(backbone))


def _drop_path(backbone: str) -> float:
    """0.2 for the larger Swins, 0.1 for other transformers. The release's ResNets, torchvision's, have none."""
    if backbone.startswith("resnet"):
        return 0.0
    return 0.2 if backbone.startswith(("swin_small", "swin_base")) else 0.1


def table_1(name: str = "swin-t", regions: bool = True) -> Stage[EsViTConfig]:
    """Table 1 by name (`SWIN`): three sizes with windows of 7 and of 14. Swin-T and Swin-S with windows of 7 had both
    losses from the start; the others the view loss to epoch 200 (Swin-S/14: 180), and then both.

    Linear and k-NN with both losses (view loss alone): Swin-T 78.1, 75.7 (77.0, 74.2); S 79.5, 77.7 (79.2, 76.8);
    B 80.4, 78.9 (79.6, 77.7); W=14: T 78.7, 77.0 (77.9, 75.5); S 80.8, 79.1 (79.4, 77.3); B 81.3, 79.3 (80.5, 78.3).
    """
    later = {"swin-t": 0, "swin-s": 0, "swin-s-w14": 180}.get(name, LATER)
    return _with(pretrain(SWIN[name]), regions, later)


def table_3(images: int = IMAGENET, regions: bool = True) -> Stage[EsViTConfig]:
    """Tables 3 and 13: Swin-T on other data. The published epochs are 300 for ImageNet-1K, 50 for OpenImages-v4 (7.5
    million images) and 30 for ImageNet-22K (14.2 million), with 10, 2 and 1 of warm-up; others see as many views.
    WebVision-v1 (2.4 million) is not in Table 13; its released weights are those of epoch 150.

    Batches are of 1024: the table's figures of the view loss alone are those of released weights with that batch, and
    for ImageNet-1K those of Table 4. ImageNet-1K with both losses is the release's run with batches of 512.

    Linear and k-NN on ImageNet-1K with both losses (view loss alone): ImageNet-1K 78.0, 75.7 (77.1, 73.7); WebVision
    75.9, 71.2 (75.4, 69.4); OpenImages 70.6, 62.0 (69.6, 60.3); ImageNet-22K 75.0, 67.9 (73.5, 66.1).
    """
    published = {IMAGENET: (300, 10.0), 2_400_000: (150, 5.0), 7_500_000: (50, 2.0), 14_200_000: (30, 1.0)}
    plain = pretrain()
    same_views = views_budget(300 * IMAGENET * plain.plan.crops, images, plain.plan.crops)
    epochs, warmup = published.get(images, (same_views, same_views / 30))
    batch = 512 if regions and images == IMAGENET else 1024
    return _with(replace(plain, epochs=epochs, batch=batch, optim=_optim(batch, epochs, warmup)), regions)


def table_4(name: str = "swin", regions: bool = True) -> Stage[EsViTConfig]:
    """Table 4 by name (`OTHERS`): networks of four stages (2-2-6-2 blocks) and two for reference, batches of 1024. With
    both losses the released ones had the view loss alone to epoch 200.

    Linear and k-NN with both losses (view loss alone): R-50 75.7, 71.2 (75.0, 69.3); Swin 77.6, 75.4 (77.1, 73.7);
    ViL 77.5, 74.5 (77.3, 73.9); CvT 78.5, 76.7 (77.6, 74.8); PvT 76.3, 72.9 (75.4, 72.0); DeiT (75.9, 73.2).
    """
    stage = replace(pretrain(OTHERS[name]), batch=1024, optim=_optim(1024, 300))
    return _with(stage, regions, LATER)


def table_5(regions: bool = True) -> Stage[EsViTConfig]:
    """Table 5: ResNet-50, two views, 200 epochs; MoCo v2 and DenseCL are the contrastive pair beside it.

    Linear and k-NN: 69.9 and 61.7, with the view loss alone 69.2 and 59.9. MoCo v2 67.5 and 55.6, DenseCL 63.6, 48.6.
    """
    stage = pretrain(OTHERS["r-50"], epochs=200)
    objective = replace(stage.objective, local_crops=0)
    return _with(replace(stage, objective=objective, plan=dino_plan(objective, stage.size)), regions)


def contrastive(dense: bool = False) -> Stage:
    """Table 5's other pair: MoCo v2 and DenseCL with ResNet-50, two views, 200 epochs. These are MoCo v2's own settings
    for ImageNet-1K, which DenseCL took over: SGD, batches of 256, a rate of 0.03, a weight decay of 1e-4, a cosine, a
    queue of 65,536, width 128, no stochastic depth.

    Linear and k-NN: MoCo v2 67.5 and 55.6, DenseCL 63.6 and 48.6.
    """
    stage: Stage = (baselines.densecl if dense else baselines.moco_v2)(OTHERS["r-50"], epochs=200, size=224)
    optim = replace(stage.optim, lr=0.03, weight_decay=1e-4)
    objective = replace(stage.objective, dim=128, queue=65_536)
    return replace(stage, batch=256, optim=optim, objective=objective, drop_path=0.0)


def byol(regions: Literal["none", "mse", "softmax"] = "none") -> Stage[BYOLConfig]:
    """Sec. 4.3: BYOL, alone and with regions, after 50 epochs. The network is not said; here it is that of the other
    ablations. Optimiser and batch are those of EsViT: BYOL's own, LARS with batches of 4,096, are for ResNets.

    k-NN: 33.1, with regions by a softmax 37.2, by their distance 34.9.
    """
    optim = replace(_optim(512, 50), lr=1e-3, min_lr=0.0)
    return Stage(SWIN["swin-t"], 50, 512, 224, optim, BYOLConfig(regions=regions), policies.byol(224), 0.1)


def _with(stage: Stage[EsViTConfig], regions: bool, region_from: int = 0) -> Stage[EsViTConfig]:
    changes = {"region_from": region_from} if regions else {"view_weight": 1.0, "region_weight": 0.0}
    return replace(stage, objective=replace(stage.objective, **changes))


def _optim(batch: int, epochs: int, warmup: float | None = None) -> OptimConfig:
    return OptimConfig(
        lr=None if batch <= 512 else 5e-4 * batch / 256,  # the default has the paper's rule, up to 1e-3
        min_lr=1e-6,
        warmup_epochs=epochs / 30 if warmup is None else warmup,
        weight_decay=0.04,
        final_weight_decay=0.4,
        clip=3.0,
        clip_per="tensor",
    )


def views_budget(views: float, images: int, crops: int) -> int:
    """The epochs in which a run on so many images, with so many crops of each, sees about so many views (C.6)."""
    return max(1, round(views / (images * crops)))


def for_images(stage: Stage[EsViTConfig], images: int, batch: int | None = None) -> Stage[EsViTConfig]:
    """The paper's stage for other numbers of images, and for another batch if one is given. At those of ImageNet it is
    the paper's; at 2,000 it has

    - batches of 64: at least about thirty steps an epoch. With 512 the centre would be moved four times an epoch;
    - 4,096 prototypes, about two an image and a power of two. Of 65,536, nearly all would never be an answer, and
      the loss would stay near ln K for long;
    - a teacher at 0.04 throughout. A warmer one comes near the uniform answer (DINO, App. D), from which a small batch
      does not lead away; the paper's 0.07 begins at 100,000 images;
    - regions that are compared with those of the same place. Those that look most alike to a network after so few
      images are mostly others, and the loss makes them more alike (docs/esvit.md). Measured at 2,040 images; where the
      paper's way becomes the better one is not known, and taken to be at 100,000;
    - 800 epochs, as IDMM has them. From there the number falls to the paper's 300 by a power of the images (N^-0.15):
      fewer images need more passes, but not as many as would make the steps equal (192,000);
    - a teacher that remembers at most a twenty-fifth of the run. Its memory is 1 / (1 - m) steps, 250 at 0.996: too
      much for a run of 1,000. So 1 - m is 25 / steps, from 0.004 to 0.03.

    The rate follows the batch (5e-4 for each 256 images), the warm-up the epochs (`epochs_for`).
    """
    if batch is None:
        batch = min(stage.batch, max(64, _power_of_two(images / 31)))
    steps = stage.epochs * math.ceil(images / batch)
    objective = replace(
        stage.objective,
        prototypes=min(65_536, max(1024, _power_of_two(images * 2))),
        teacher_temperature=0.07 if images >= MANY else 0.04,
        match="argmax" if images >= MANY else "place",
        momentum=1 - min(0.03, max(0.004, 25 / steps)),
    )
    return replace(stage, batch=batch, objective=objective, plan=dino_plan(objective, stage.size))


def with_weights(objective: EsViTConfig, said: Collection[str]) -> EsViTConfig:
    """Where one loss is left out, the other has the weight of both, unless its own was said."""
    if objective.view_weight and objective.region_weight:
        return objective
    usual = {name: getattr(EsViTConfig, name) for name in ("view_weight", "region_weight")}
    left = [name for name, weight in usual.items() if name not in said and getattr(objective, name) == weight]
    return replace(objective, **dict.fromkeys(left, sum(usual.values())))


def _power_of_two(about: float) -> int:
    return 2 ** round(math.log2(about))


def epochs_for(images: int) -> int:
    """800 at 2,000 images, the paper's 300 at ImageNet's; see `for_images`."""
    return round(800 * (2_000 / images) ** (math.log(800 / 300) / math.log(IMAGENET / 2_000)))
