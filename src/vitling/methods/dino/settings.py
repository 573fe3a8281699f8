"""DINO (Caron et al., ICCV 2021): settings, views and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from vitling.errors import UserError
from vitling.methods.method import Method, MethodPreset, Recipe, check_preset
from vitling.ranges import AT_LEAST_1, CROPS, FRACTION, MORE_CROPS, NOT_NEGATIVE, POSITIVE
from vitling.training.config import OptimConfig
from vitling.views import policies
from vitling.views.plan import Plan

SHAPES = ("prototypes", "hidden", "bottleneck")


@dataclass(frozen=True)
class DINOConfig:
    """DINO: predict a momentum teacher's output for a different global view."""

    method: ClassVar[str] = "DINO"
    global_crops: Annotated[int, CROPS] = 2
    """Global crops per image, which the teacher sees too."""
    local_crops: Annotated[int, MORE_CROPS] = 8
    """Local crops per image, which only the student sees; 0 turns them off."""
    local_size: Annotated[int | None, AT_LEAST_1] = None
    """Pixels of a local crop. By default 3/7 of a global one (96 of 224, 48 of 112), in whole patches of 16 or 4."""
    prototypes: Annotated[int, AT_LEAST_1] = 4096
    """Number of prototypes (K): the outputs of the softmax."""
    hidden: Annotated[int, AT_LEAST_1] = 2048
    """Width of the head's hidden layers."""
    bottleneck: Annotated[int, AT_LEAST_1] = 256
    """Width of the vectors that are compared with the prototypes."""
    temperature: Annotated[float, POSITIVE] = 0.1
    """Temperature of the student's softmax."""
    teacher_start: Annotated[float, POSITIVE] = 0.04
    """Temperature of the teacher's softmax at the start; lower is sharper."""
    teacher_temperature: Annotated[float, POSITIVE] = 0.07
    """Temperature of the teacher's softmax after its warm-up."""
    teacher_warmup: Annotated[float, FRACTION] = 0.1
    """Fraction of the run over which the teacher's temperature rises."""
    teacher_warmup_per: Literal["step", "epoch"] = "step"
    """Raise the teacher's temperature in every step, or once per epoch as the released code of DINO and EsViT does."""
    momentum: Annotated[float, FRACTION] = 0.996
    """Momentum of the teacher at the start; it rises to 1."""
    centre: Annotated[float, FRACTION] = 0.9
    """Momentum of the teacher's centre; 1 turns centring off."""
    freeze_epochs: Annotated[float, NOT_NEGATIVE] = 1.0
    """Epochs during which the prototypes are frozen."""

    @property
    def needs_boxes(self) -> bool:
        """Return whether the loss needs the box of each view in its image."""
        return False

    def check(self) -> None:
        """Raise UserError if there is only one crop."""
        if self.global_crops + self.local_crops < 2:
            raise UserError(f"{self.method} compares the crops of an image with each other; it needs at least two.")


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: MethodPreset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[DINOConfig]:
    """Return Table 10's DINO: AdamW, batches of 512, a learning rate of 5e-4, a weight decay of 0.04 (DINO's own rises
    to 0.4).

    Open in the table and taken from DINO: two global and eight local views, the latter at 3/7 of the size (48 of 112
    px, as 96 of 224); head, teacher and centre; gradients clipped at 3 per tensor; a final learning rate of 1e-6; a
    warm-up over the same fraction of the run (10 of 300 epochs).

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 64.1.
    """
    check_preset("DINO", preset)
    optim = OptimConfig(lr=5e-4, min_lr=1e-6, warmup_epochs=epochs / 30, weight_decay=0.04, clip=3.0, clip_per="tensor")
    return Recipe(backbone, epochs, 512, size, optim, DINOConfig())


def dino_plan(config: DINOConfig, size: int = 112) -> Plan:
    """Plan the crops: global ones and, unless turned off, local ones."""
    plan = policies.dino(size, config.local_size or local_size(size), config.local_crops, config.global_crops)
    if not config.needs_boxes:
        return plan
    return replace(plan, groups=tuple(replace(group, return_boxes=True) for group in plan.groups))


def local_size(size: int) -> int:
    """Return 3/7 of a global crop in whole patches of 16 px, or of 4 px for tiny images."""
    patch = 16 if size >= 64 else 4
    return max(patch, round(size * 3 / 7 / patch) * patch)


METHOD = Method(
    "dino",
    "predicts a momentum teacher's output for a different global view",
    recipe,
    dino_plan,
    DINOConfig,
    shapes=SHAPES,
)
