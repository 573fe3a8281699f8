"""Base of the objectives of detection and segmentation: maps of a backbone whose first stages may be frozen."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from vitling.backbones.backbone import Backbone
from vitling.backbones.transfer import check_outputs
from vitling.dense.pyramid import STRIDES, StageMaps
from vitling.objectives.objective import Objective
from vitling.views.plan import Plan


class DenseObjective(Objective):
    """An objective over the maps of strides 4 to 32. The first `frozen` quarters of the backbone's blocks, and all that
    comes before them, are not trained; 4 freezes the whole backbone."""

    def __init__(self, backbone: Backbone, plan: Plan, frozen: int = 0, multiple: int = STRIDES[-1]):
        if not 0 <= frozen <= 4:
            raise ValueError(f"frozen is a number of quarters from 0 to 4, not {frozen}")
        super().__init__(backbone, plan)
        self.maps = StageMaps(backbone, multiple)
        self.frozen = frozen
        freeze(backbone, frozen)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Keep frozen modules in evaluation mode: without drop path, and with the statistics of their batch norms."""
        super().train(mode)
        for module in self.backbone.modules() if self.frozen else ():  # norms may have been replaced since the start
            if _is_frozen(module):
                module.eval()
        return self

    def compute_maps(self, pixels: Tensor) -> list[Tensor]:
        features = self.backbone(self.maps.pad(pixels), stages=True)
        return self.maps(features.stages)

    def predict_maps(self, pixels: Tensor) -> list[Tensor]:
        """Compute the maps without torch.compile: its graphs belong to the training batch."""
        stages = self.backbone.forward(self.maps.pad(pixels), stages=True).stages
        assert stages is not None
        maps = self.maps(stages)
        check_outputs(*maps)
        return maps


def freeze(backbone: Backbone, quarters: int) -> None:
    """Freeze the first blocks and all parameters registered before them."""
    if quarters == 0:
        return
    blocks = backbone.blocks()
    last = list(blocks[max(1, len(blocks) * quarters // 4) - 1].parameters())[-1]
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
        if parameter is last and quarters < 4:
            break


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
