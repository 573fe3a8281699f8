"""Differences between the families: the input sizes they take and how their features are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models.convnext import ConvNeXt
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.resnet import ResNet
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.backbones.cvt import CvT
from vitling.backbones.cvt4 import CvT4
from vitling.backbones.features import Features, Stages, to_map
from vitling.backbones.position import Grid, resize_positions
from vitling.backbones.pvt import PVT
from vitling.backbones.swin import UnbiasedSwin
from vitling.backbones.t2t import T2TViT
from vitling.backbones.vil import ViL
from vitling.errors import UserError


@dataclass(frozen=True)
class Family:
    """Accessors of one kind of network."""

    patch: Callable[[Any], int]  # side of a patch in pixels; input sides must be a multiple of it
    halvings: Callable[[Any], int]  # how often the grid is halved, rounding up, after the patches
    run: Callable[[Any, Tensor, Stages], Features]
    blocks: Callable[[Any], list[nn.Module]]  # blocks, plus other expensive modules
    sections: Callable[[Any], list[nn.Module]] | None = None  # nearly all of the network; each is called once per image
    min_side: int = 1  # of the input, in pixels
    overlap: bool = False  # tokens come from padded convolutions, not from patches

    def token_centres(self, model: nn.Module, side: int, device: torch.device | None = None) -> Tensor:
        """Compute the centre of what each token covers along a side of the image, from 0 to 1.

        Patches lie side by side from the edge, and the last may cover less than the others. A padded convolution has
        its first token around the edge (within 1.5 px).
        """
        pitch = self.patch(model) * 2 ** self.halvings(model)
        first = torch.arange(self._count_tokens(model, side), device=device) * pitch - self.overlap * pitch / 2
        return (first.clamp(min=0) + (first + pitch).clamp(max=side)) / (2 * side)

    def compute_grid(self, model: nn.Module, height: int, width: int) -> Grid:
        return self._count_tokens(model, height), self._count_tokens(model, width)

    def _count_tokens(self, model: nn.Module, side: int) -> int:
        patch = self.patch(model)
        if side % patch:
            near = max(patch, round(side / patch) * patch)
            raise UserError(f"{side} px does not divide into patches of {patch} px; use {near} px.")
        if side < self.min_side:
            raise UserError(f"{side} px is too small for this network; use at least {self.min_side} px.")
        side //= patch
        for _ in range(self.halvings(model)):
            side = -(-side // 2)
        return side


def find_family(model: nn.Module, name: str) -> Family:
    family = _FAMILIES.get(type(model))
    plain = not isinstance(model, VisionTransformer) or type(model.patch_embed) is PatchEmbed
    if family is None or not plain:
        kind = type(model).__name__ if plain else f"{type(model).__name__} with {type(model.patch_embed).__name__}"
        raise UserError(
            f"{name} is a {kind}, which vitling does not support. Supported timm families: "
            "ViT, DeiT, Swin (v1), PVTv2, ResNet, ConvNeXt. `vitling list backbones` shows the tested ones."
        )
    return family


def _run_vit(model: VisionTransformer, x: Tensor, stages: Stages) -> Features:
    """Run timm's forward_features, but resize positions by plain bicubic for every grid."""
    grid = model.patch_embed.dynamic_feat_size(x.shape[-2:])
    tokens = model.norm_pre(_add_positions(model, model.patch_embed(x), grid))
    outputs = []
    for block in model.blocks:
        tokens = block(tokens)
        if stages:
            outputs.append(to_map(tokens, grid))
    final = model.norm(tokens)
    return Features(
        model.forward_head(final, pre_logits=True),
        to_map(final, grid),
        outputs if stages else None,
        raw_grid=to_map(tokens, grid),
        published="before",
    )


def _add_positions(model: Any, tokens: Tensor, grid: Grid) -> Tensor:
    prefix = [t.expand(tokens.shape[0], -1, -1) for t in (model.cls_token, model.reg_token) if t is not None]
    if model.pos_embed is None:
        return model.pos_drop(torch.cat([*prefix, tokens], dim=1))
    positions = resize_positions(model.pos_embed, model.patch_embed.grid_size, grid)
    if model.no_embed_class:
        tokens = torch.cat([*prefix, tokens + positions], dim=1)
    else:
        tokens = torch.cat([*prefix, tokens], dim=1) + positions
    return model.pos_drop(tokens)


def _run_swin(model: Any, x: Tensor, stages: Stages) -> Features:
    maps = model.embed_patches(x) if isinstance(model, UnbiasedSwin) else model.patch_embed(x)
    outputs = []
    for layer in model.layers:
        hidden = [layer.downsample(maps)]
        for block in layer.blocks:
            hidden.append(block(hidden[-1], block.make_mask(hidden[-1])))
        maps = hidden[-1]
        outputs += [_channels_first(m) for m in _select_outputs(hidden[1:], stages)]
    final = model.norm(maps)
    return Features(
        model.forward_head(final, pre_logits=True),
        _channels_first(final),
        outputs if stages else None,
        raw_grid=outputs[-1],
        published="before",
    )


def _select_outputs(blocks: list[Tensor], stages: Stages) -> list[Tensor]:
    """Select the outputs of all blocks of a stage, or of the last."""
    return blocks if stages == "blocks" else blocks[-1:]


def _channels_first(maps: Tensor) -> Tensor:
    return maps.permute(0, 3, 1, 2)


def _run_pvt(model: Any, x: Tensor, stages: Stages) -> Features:
    maps = model.patch_embed(x)
    outputs = []
    for stage in model.stages:
        if stages == "blocks":
            *blocks, maps = stage.forward_blocks(maps)
            outputs += blocks
        else:
            maps = stage(maps)
            outputs.append(maps)
    return Features(model.forward_head(maps, pre_logits=True), maps, outputs if stages else None)


def _run_resnet(model: Any, x: Tensor, stages: Stages) -> Features:
    maps = model.maxpool(model.act1(model.bn1(model.conv1(x))))
    outputs = []
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        hidden = [maps]
        for block in layer:
            hidden.append(block(hidden[-1]))
        maps = hidden[-1]
        outputs += _select_outputs(hidden[1:], stages)
    return Features(model.forward_head(maps, pre_logits=True), maps, outputs if stages else None)


def _run_convnext(model: Any, x: Tensor, stages: Stages) -> Features:
    maps = model.stem(x)
    outputs = []
    for stage in model.stages:
        hidden = [stage.downsample(maps)]
        for block in stage.blocks:
            hidden.append(block(hidden[-1]))
        maps = hidden[-1]
        outputs += _select_outputs(hidden[1:], stages)
    final = model.norm_pre(maps)
    return Features(model.forward_head(final, pre_logits=True), final, outputs if stages else None)


def _run_own(model: nn.Module, x: Tensor, stages: Stages) -> Features:
    return model(x, stages)


def _list_blocks(stages: Any) -> list[nn.Module]:
    return [block for stage in stages for block in stage.blocks]


def _list_resnet_blocks(model: Any) -> list[nn.Module]:
    return [*model.layer1, *model.layer2, *model.layer3, *model.layer4]


def _patch_size(model: Any) -> int:
    return model.patch_embed.patch_size[0]


_SWIN = Family(_patch_size, lambda m: len(m.layers) - 1, _run_swin, lambda m: _list_blocks(m.layers))
# patches of 4 x 4 px, and a halving before each further stage
_PYRAMID = Family(lambda m: 4, lambda m: len(m.stages) - 1, _run_own, lambda m: _list_blocks(m.stages))
_CONV_PYRAMID = replace(_PYRAMID, overlap=True)
_FAMILIES: dict[type, Family] = {
    VisionTransformer: Family(_patch_size, lambda m: 0, _run_vit, lambda m: list(m.blocks)),
    SwinTransformer: _SWIN,
    UnbiasedSwin: _SWIN,
    # min_side: the first stage reduces its keys by a convolution of 8 x 8 tokens, which must fit
    PyramidVisionTransformerV2: Family(
        lambda m: 1,
        lambda m: 1 + len(m.stages),
        _run_pvt,
        lambda m: _list_blocks(m.stages),
        sections=lambda m: [m.patch_embed, *m.stages],
        min_side=29,
        overlap=True,
    ),
    ResNet: Family(lambda m: 1, lambda m: 5, _run_resnet, _list_resnet_blocks, overlap=True),
    # 4 x 4 patches, then patches of 2 x 2 before three stages, without padding
    ConvNeXt: Family(
        lambda m: 4 * 2 ** (len(m.stages) - 1), lambda m: 0, _run_convnext, lambda m: _list_blocks(m.stages)
    ),
    T2TViT: Family(lambda m: 4, lambda m: 2, _run_own, lambda m: [m.tokens_to_token, *m.blocks], overlap=True),
    CvT: _CONV_PYRAMID,
    CvT4: _CONV_PYRAMID,
    PVT: _PYRAMID,
    ViL: _PYRAMID,
}
