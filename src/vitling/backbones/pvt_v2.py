"""PVTv2's stages as modules that can be compiled one by one."""

from __future__ import annotations

import torch
from timm.models.pvt_v2 import PyramidVisionTransformerStage
from torch import Tensor, nn


class PvtStage(nn.Module):
    """timm's stage with the same parameters and, on GPUs, in the layout that its convolutions need."""

    def __init__(self, stage: PyramidVisionTransformerStage):
        super().__init__()
        self.downsample, self.blocks, self.norm = stage.downsample, stage.blocks, stage.norm

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps [B, D, h, w]. Those of the first stage come as [B, h, w, D] from the patch embedding."""
        return self.forward_blocks(maps)[-1]

    def forward_blocks(self, maps: Tensor) -> list[Tensor]:
        """Return the maps after each block, and the normalised ones of the stage."""
        layout = torch.channels_last if maps.is_cuda else torch.contiguous_format  # cuDNN would convert to it and back
        tokens = maps if self.downsample is None else self.downsample(maps)  # [B, h, w, D]
        size, hidden = tokens.shape[1:3], [tokens.flatten(1, 2)]
        for block in self.blocks:
            hidden.append(block(hidden[-1], size))
        final = self.norm(hidden[-1]).unflatten(1, size).permute(0, 3, 1, 2).contiguous(memory_format=layout)
        return [*(t.unflatten(1, size).permute(0, 3, 1, 2) for t in hidden[1:]), final]


def replace_pvt_stages(model: nn.Module) -> None:
    """Replace PVTv2's stages in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, PyramidVisionTransformerStage):
                setattr(parent, name, PvtStage(child))
