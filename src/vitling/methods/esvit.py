"""EsViT's settings: the paper's for ImageNet, and the same method for a few thousand images.

The paper has its settings in C.3 and Table 13; what it leaves open is as in its released code, which it does not
contradict: weight decay from 0.04 to 0.4, gradients clipped at 3 for each tensor, temperatures, crops, stochastic
depth. The released code decays relative-position tables too; here they are spared, as everywhere in vitling. And it
trains the lengths of the prototypes, which are 1 here.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from vitling.errors import UserError
from vitling.methods.idmm import Preset, Stage
from vitling.objectives.config import EsViTConfig, dino_plan
from vitling.training.config import OptimConfig

IMAGENET = 1_281_167  # images
MANY = 100_000  # from so many on, temperature and matching are the paper's


def pretrain(
    backbone: str = "swin_tiny_patch4_window7_224", preset: Preset = "paper", epochs: int = 300, size: int = 224
) -> Stage[EsViTConfig]:
    """C.3: AdamW, batches of 512, a rate of 5e-4 for each 256 images, 10 of 300 epochs of warm-up, a cosine; two global
    and eight local crops. `vitling pretrain --method esvit` has these settings as `for_images` fits them to the data.

    The paper's top-1 on ImageNet-1K, linear and k-NN, after 300 epochs of Swin-T: 78.1 and 75.7, with the view loss
    alone 77.0 and 74.2.
    """
    if preset != "paper":
        raise UserError(f"EsViT has one preset, paper: its settings are those of the released code. No {preset!r}.")
    objective = EsViTConfig(prototypes=65_536, teacher_temperature=0.07, match="argmax")
    optim = make_optim(512, epochs)
    return Stage(backbone, epochs, 512, size, optim, objective, dino_plan(objective, size), _drop_path(backbone))


def _drop_path(backbone: str) -> float:
    """0.2 for the larger Swins, 0.1 for other transformers. The release's ResNets, torchvision's, have none."""
    if backbone.startswith("resnet"):
        return 0.0
    return 0.2 if backbone.startswith(("swin_small", "swin_base")) else 0.1


def make_optim(batch: int, epochs: int, warmup: float | None = None) -> OptimConfig:
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
