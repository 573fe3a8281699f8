"""Swin without its relative position bias: to ask what that bias gives (DRLoc's supplement, Sec. 2.2)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import torch
from timm.layers import trunc_normal_
from timm.models.swin_transformer import SwinTransformer, WindowAttention
from torch import Tensor, nn

from vitling.backbones.position import Grid, resize_map


class UnbiasedSwin(SwinTransformer):
    """timm's Swin with no positions at all, or with absolute ones, added to the patches as in Swin's release."""

    pretrained_cfg: ClassVar = {"classifier": "head.fc", "first_conv": "patch_embed.proj"}

    def __init__(self, positions: Literal["none", "absolute"], **arguments: Any):
        super().__init__(num_classes=0, **arguments)
        for module in self.modules():
            if isinstance(module, WindowAttention):
                _take_bias_from(module)
        self.absolute_pos_embed = self._fresh_positions() if positions == "absolute" else None

    def _fresh_positions(self) -> nn.Parameter:
        high, wide = cast(Grid, self.patch_embed.grid_size)
        return nn.Parameter(trunc_normal_(torch.zeros(1, high, wide, self.embed_dim), std=0.02))

    def patches(self, x: Tensor) -> Tensor:
        """[B, h, w, D], with positions where there are any; another grid has them resized."""
        maps = self.patch_embed(x)
        if self.absolute_pos_embed is None:
            return maps
        positions: Tensor = self.absolute_pos_embed
        if maps.shape[1:3] != positions.shape[1:3]:
            grid = (maps.shape[1], maps.shape[2])
            positions = resize_map(positions.permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)
        return maps + positions

    def no_weight_decay(self) -> set[str]:
        return {"absolute_pos_embed"}


def _take_bias_from(attention: WindowAttention) -> None:
    """Zeros that are neither trained nor saved."""
    zeros = torch.zeros_like(attention.relative_position_bias_table.data)
    del attention.relative_position_bias_table
    attention.register_buffer("relative_position_bias_table", zeros, persistent=False)
