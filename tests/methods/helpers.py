"""Small versions of the methods with a momentum copy, and views of noise for any plan."""

from __future__ import annotations

import torch

from tests.tiny import tiny_backbone
from vitling.methods.byol.loss import BYOL
from vitling.methods.byol.settings import BYOLConfig
from vitling.methods.densecl.loss import DenseCL
from vitling.methods.densecl.settings import DenseCLConfig
from vitling.methods.dino.loss import DINO
from vitling.methods.dino.settings import DINOConfig, dino_plan
from vitling.methods.esvit.loss import EsViT
from vitling.methods.esvit.settings import EsViTConfig
from vitling.methods.moco_v2.loss import MoCoV2
from vitling.methods.moco_v2.settings import MoCoV2Config
from vitling.methods.moco_v3.loss import MoCoV3
from vitling.methods.moco_v3.settings import MoCoV3Config
from vitling.objectives import Batch, Objective
from vitling.objectives.progress import Progress
from vitling.views import Views
from vitling.views.plan import Group
from vitling.views.policies import make_plan

METHODS = ["moco-v2", "moco-v3", "byol", "dino", "esvit", "densecl"]
NORMED = ["moco-v3", "byol"]  # with batch norm in their heads
START = Progress(0, 100, 10)


def make(method: str, drop_path: float = 0.0, **settings) -> Objective:
    torch.manual_seed(0)
    backbone = tiny_backbone(drop_path=drop_path)
    if method == "moco-v2":
        return MoCoV2(backbone, make_plan(method, 16), MoCoV2Config(**{"dim": 8, "queue": 10, **settings}))
    if method == "densecl":
        return DenseCL(backbone, make_plan("moco-v2", 16), DenseCLConfig(**{"dim": 8, "queue": 10, **settings}))
    if method == "moco-v3":
        return MoCoV3(backbone, make_plan(method, 16), MoCoV3Config(dim=8, hidden=24, **settings))
    if method == "byol":
        return BYOL(backbone, make_plan(method, 16), BYOLConfig(dim=8, hidden=24, **settings))
    settings = {"local_crops": 2, "prototypes": 12, "hidden": 24, "bottleneck": 8, **settings}
    if method == "dino":
        return DINO(backbone, dino_plan(config := DINOConfig(**settings), 16), config)
    return EsViT(backbone, dino_plan(config := EsViTConfig(**settings), 16), config)


def noise(objective: Objective, images: int, seed: int = 0) -> list[Views]:
    """Draw views of noise, with overlapping boxes for groups that return boxes."""
    random = torch.Generator().manual_seed(seed)

    def draw(group: Group) -> Views:
        count = group.count * images
        pixels = torch.randn(count, 3, group.size, group.size, generator=random)
        boxes = torch.rand(count, 4, generator=random).clamp(min=0.3) if group.return_boxes else None
        return Views(pixels, group.count, boxes=boxes)

    return [draw(group) for group in objective.plan.groups]


def batch_of(images: int, first: int = 0) -> Batch:
    return Batch(torch.arange(first, first + images), None)


def step(objective: Objective, optimiser: torch.optim.Optimizer, seed: int, progress: Progress = START) -> float:
    """Take a step with four images as the loop does; return the loss."""
    objective.before_step(progress)
    optimiser.zero_grad()
    loss = objective.total(objective(noise(objective, 4, seed), batch_of(4, 4 * seed), progress), progress)
    loss.backward()
    optimiser.step()
    objective.after_step(progress)
    return loss.item()
