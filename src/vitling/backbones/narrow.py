"""The start of ViTs much narrower than those that timm's initial weights are made for."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

TIMMS = 0.02  # deviation of what timm draws, at any width: about 0.55 / sqrt(768), so made for ViT-B
POSITIONS = 0.5


@torch.no_grad()
def start_narrow(model: VisionTransformer) -> None:
    """Weights that keep the size of what they are given, and positions that are seen beside the patches.

    With timm's own, a block 64 wide adds next to nothing to its input, and positions of 0.02 are lost beside patches of
    about 0.5: for hundreds of steps the network sees a bag of patches. docs/idmm.md has what that costs.
    """
    for block in model.blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.weight *= layer.in_features**-0.5 / TIMMS
    assert model.pos_embed is not None
    model.pos_embed[:, model.num_prefix_tokens :] *= POSITIONS / TIMMS
