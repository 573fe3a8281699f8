"""Swin as in EsViT, and without its relative position bias.

Maps that the window size does not divide are padded before the cyclic shift; timm pads after it. At 224 px nothing is
padded and both are equal. The variant without the bias measures its contribution (DRLoc's supplement, Sec. 2.2).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models.swin_transformer import (
    SwinTransformer,
    SwinTransformerBlock,
    WindowAttention,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from vitling.backbones.position import Grid, resize_map


class UnbiasedSwin(SwinTransformer):
    """timm's Swin without positions, or with absolute ones that are added to the patches as in Swin's release."""

    pretrained_cfg: ClassVar = {"classifier": "head.fc", "first_conv": "patch_embed.proj"}

    def __init__(self, positions: Literal["none", "absolute"], **arguments: Any):
        super().__init__(num_classes=0, **arguments)
        for module in self.modules():
            if isinstance(module, WindowAttention):
                _remove_bias(module)
        self.absolute_pos_embed = self._init_positions() if positions == "absolute" else None

    def _init_positions(self) -> nn.Parameter:
        height, width = cast(Grid, self.patch_embed.grid_size)
        return nn.Parameter(trunc_normal_(torch.zeros(1, height, width, self.embed_dim), std=0.02))

    def embed_patches(self, x: Tensor) -> Tensor:
        """Embed patches as [B, h, w, D], with positions, if any, resized to the grid."""
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


def _remove_bias(attention: WindowAttention) -> None:
    """Replace the bias by zeros that are neither trained nor saved."""
    zeros = torch.zeros_like(attention.relative_position_bias_table.data)
    del attention.relative_position_bias_table
    attention.register_buffer("relative_position_bias_table", zeros, persistent=False)


class WindowBlock(nn.Module):
    """timm's block with the same layers and names.

    Window and shift sizes are fixed at construction. Padding is not masked and receives attention.
    """

    def __init__(self, block: SwinTransformerBlock):
        super().__init__()
        self.window_size = block.window_size
        self.shift_size = block.shift_size
        self.norm1, self.attn, self.drop_path1 = block.norm1, block.attn, block.drop_path1
        self.norm2, self.mlp, self.drop_path2 = block.norm2, block.mlp, block.drop_path2

    def make_mask(self, maps: Tensor) -> Tensor | None:
        """Return the attention mask for tokens that are adjacent only because of the cyclic shift.

        Call it outside compiled code.
        """
        if not any(self.shift_size):
            return None
        grid = tuple(side + pad for side, pad in zip(maps.shape[1:3], self._padding(maps)))
        arguments = (grid, self.window_size, self.shift_size, maps.device, maps.dtype)
        return make_shift_mask.__wrapped__(*arguments) if torch.compiler.is_compiling() else make_shift_mask(*arguments)

    def forward(self, maps: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform maps [B, h, w, D]; `mask` is `make_mask(maps)`."""
        mask = self.make_mask(maps) if mask is None else mask
        maps = maps + self.drop_path1(self._attend(self.norm1(maps), mask))
        tokens = maps.flatten(1, 2)
        tokens = tokens + self.drop_path2(self.mlp(self.norm2(tokens)))
        return tokens.unflatten(1, maps.shape[1:3])

    def _attend(self, maps: Tensor, mask: Tensor | None) -> Tensor:
        height, width = maps.shape[1:3]
        pad_h, pad_w = self._padding(maps)
        maps = F.pad(maps, (0, 0, 0, pad_w, 0, pad_h)) if pad_h or pad_w else maps
        padded = maps.shape[1:3]
        if mask is not None:
            maps = maps.roll((-self.shift_size[0], -self.shift_size[1]), (1, 2))
        windows = window_partition(maps, self.window_size)
        windows = self.attn(windows.flatten(1, 2), mask=mask).view(windows.shape)
        maps = window_reverse(windows, self.window_size, *padded)
        if mask is not None:
            maps = maps.roll(self.shift_size, (1, 2))
        return maps[:, :height, :width]

    def _padding(self, maps: Tensor) -> Grid:
        """Compute the rows below and columns to the right that complete the windows."""
        pad_h, pad_w = (-side % window for side, window in zip(maps.shape[1:3], self.window_size))
        return pad_h, pad_w


@lru_cache(maxsize=256)
def make_shift_mask(grid: Grid, window: Grid, shift: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a mask [windows, tokens, tokens] that is −100 between tokens separated by a border of the map, else 0."""
    with torch.inference_mode(False):
        bands = [_label_bands(*axis, device) for axis in zip(grid, window, shift)]
        regions = (3 * bands[0][:, None] + bands[1])[None, :, :, None]
        inside = window_partition(regions, window).flatten(1)
        return -100.0 * (inside[:, None] != inside[:, :, None]).to(dtype)


def _label_bands(side: int, window: int, shift: int, device: torch.device) -> Tensor:
    """Label positions: 0 in whole windows, 1 in the last window, 2 if shifted from the opposite end."""
    positions = torch.arange(side, device=device)
    return (positions >= side - window).long() + (positions >= side - shift).long()


def replace_swin_blocks(model: nn.Module) -> None:
    """Replace timm's blocks in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, SwinTransformerBlock):
                setattr(parent, name, WindowBlock(child))


def matches_timm(model: nn.Module, size: int) -> bool:
    """Return whether timm's network gives the same output at `size` px: no map is both padded and shifted."""
    if not isinstance(model, SwinTransformer):
        return True
    network = cast(Any, model)
    sides = [size // network.patch_embed.patch_size[0]]
    while len(sides) < len(network.layers):
        sides.append(-(-sides[-1] // 2))
    windows = [(side, block) for side, layer in zip(sides, network.layers) for block in layer.blocks]
    return not any(any(block.shift_size) and side % block.window_size[0] for side, block in windows)
