"""MoCo v2 (Chen et al. 2020): settings and recipe. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from vitling.methods.idmm_optim import Table10Preset, sgd_or_adamw
from vitling.methods.method import Method, Recipe, Remark
from vitling.ranges import AT_LEAST_1, FRACTION, POSITIVE
from vitling.views import policies

if TYPE_CHECKING:
    from vitling.backbones.backbone import Backbone


@dataclass(frozen=True)
class MoCoV2Config:
    """MoCo v2: find the other view of an image among a queue of earlier keys."""

    dim: Annotated[int, AT_LEAST_1] = 256
    """Width of queries and keys."""
    temperature: Annotated[float, POSITIVE] = 0.2
    """Temperature of the softmax; lower is sharper."""
    queue: Annotated[int, AT_LEAST_1] = 2048
    """Number of keys in the queue."""
    mask_own: bool = False
    """Do not count an image's own earlier keys as negatives; there are many if the queue is longer than an epoch."""
    momentum: Annotated[float, FRACTION] = 0.999
    """Momentum of the key encoder."""


def recipe(
    backbone: str = "deit_tiny_patch16_224", preset: Table10Preset = "paper", epochs: int = 800, size: int = 112
) -> Recipe[MoCoV2Config]:
    """Return Table 10's MoCo v2: SGD, batches of 256, a learning rate of 5e-4 taken literally, a queue of 2048 keys; or
    AdamW.

    Open in the table and taken from MoCo v2: views, head, key-encoder momentum 0.999, SGD momentum 0.9, no warm-up for
    SGD. MoCo v2's own learning rate is 0.03. The queue is longer than the training split of Flowers-102 (2,040 images):
    --moco-v2.mask-own leaves an image's own keys out.

    The paper's top-1 on Flowers-102 after 200 epochs of fine-tuning: DeiT-Tiny 61.8.
    """
    optim = sgd_or_adamw("MoCo v2", preset, epochs, warmup_epochs=0)
    return Recipe(backbone, epochs, 256, size, optim, MoCoV2Config())


def warn_of_batch_norm(config: Any, backbone: Backbone, device: str) -> list[Remark]:
    """Warn that batch statistics reveal which key belongs to the batch (MoCo, Sec. 3.3)."""
    from torch.nn.modules.batchnorm import _BatchNorm

    if not any(isinstance(module, _BatchNorm) for module in backbone.modules()):
        return []
    text = (
        f"{backbone.name} has batch norm, whose statistics tell the key of this batch from those in the queue: the "
        "method can solve its task without learning. MoCo's shuffled batch norm is not implemented."
    )
    return [Remark(text)]


METHOD = Method(
    "moco-v2",
    "finds the other view of an image among a queue of keys",
    recipe,
    lambda config, size: policies.moco_v2(size),
    MoCoV2Config,
    default_preset="adamw",
    remarks=warn_of_batch_norm,
)
