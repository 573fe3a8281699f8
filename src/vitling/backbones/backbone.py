"""`create(name, size)` builds a `Backbone`; calling it returns `Features`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.backbones import names
from vitling.backbones.attention import compute_attention, find_attention, find_last_block, record_input
from vitling.backbones.cvt import CvT
from vitling.backbones.cvt4 import CvT4
from vitling.backbones.depth import replace_drop_paths
from vitling.backbones.depthwise import replace_depthwise_mlps
from vitling.backbones.dot_product import replace_attention
from vitling.backbones.families import find_family
from vitling.backbones.features import Features, Stages
from vitling.backbones.patches import replace_patch_convolutions
from vitling.backbones.position import Grid
from vitling.backbones.pvt import PVT
from vitling.backbones.pvt_v2 import replace_pvt_stages
from vitling.backbones.swin import UnbiasedSwin, replace_swin_blocks
from vitling.backbones.t2t import T2TViT
from vitling.backbones.vil import ViL
from vitling.backbones.vit import create_drloc_vit
from vitling.errors import UserError

# networks that timm lacks, by the name that saved models record as their architecture
CUSTOM_MODELS: dict[str, Callable[..., nn.Module]] = {
    "t2t_vit": T2TViT,
    "cvt": CvT,
    "cvt4": CvT4,
    "pvt": PVT,
    "vil": ViL,
    "vit_drloc": create_drloc_vit,
    "swin_unbiased": UnbiasedSwin,
}


class Backbone(nn.Module):
    """A network without its head, built by `timm.create_model(architecture, **model_args)` or by CUSTOM_MODELS."""

    def __init__(self, name: str, timm_model: nn.Module, architecture: str, model_args: dict[str, Any], size: int):
        super().__init__()
        self.name = name
        self.architecture = architecture
        self.model_args = model_args
        self.size = size
        self.timm_model = timm_model
        self.family = find_family(timm_model, name)
        self.grid_size(size)  # raises UserError for a size that does not fit
        replace_patch_convolutions(timm_model)
        replace_swin_blocks(timm_model)
        replace_drop_paths(timm_model)
        replace_pvt_stages(timm_model)
        replace_depthwise_mlps(timm_model)
        replace_attention(timm_model)
        if isinstance(timm_model, VisionTransformer):
            timm_model.patch_embed.strict_img_size = False  # `_add_positions` takes any grid

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"family": None}  # it has functions that cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.family = find_family(self.timm_model, self.name)

    @property
    def dim(self) -> int:
        return int(self._timm.num_features)

    @property
    def channels(self) -> int:
        return int(self.model_args["in_chans"])

    @property
    def classifier_name(self) -> str:
        """timm's name for the linear head: head, head.fc or fc."""
        return str(self._timm.pretrained_cfg["classifier"])

    def grid_size(self, size: int | Grid | None = None) -> Grid:
        """Compute (rows, columns) of the tokens; raise UserError for an input size that does not fit."""
        size = self.size if size is None else size
        height, width = (size, size) if isinstance(size, int) else size
        return self.family.compute_grid(self.timm_model, height, width)

    def token_centres(self, side: int, device: torch.device | None = None) -> Tensor:
        """Compute where the rows (or columns) of tokens lie along a side of that many pixels, from 0 to 1."""
        return self.family.token_centres(self.timm_model, side, device)

    def blocks(self) -> list[nn.Module]:
        """List the modules that take most of the time; many of them are alike."""
        return self.family.blocks(self.timm_model)

    def sections(self) -> list[nn.Module]:
        """List the modules to compile separately: the stages, or the network itself."""
        return self.family.sections(self.timm_model) if self.family.sections else [self]

    def no_decay(self) -> set[str]:
        """Collect the names, as in `named_parameters()`, of matrices that are exempt from weight decay."""
        listed = self._timm.no_weight_decay() if hasattr(self.timm_model, "no_weight_decay") else ()
        return {f"timm_model.{name}" for name, _ in self.timm_model.named_parameters() if name in listed}

    def forward(self, x: Tensor, stages: Stages = False, attention: bool = False) -> Features:
        self.grid_size((x.shape[-2], x.shape[-1]))
        if not attention:
            return self.family.run(self.timm_model, x, stages)
        block = find_last_block(self.timm_model)
        with record_input(find_attention(block)) as recorded:
            features = self.family.run(self.timm_model, x, stages)
        return replace(features, attention=compute_attention(block, recorded, batch=x.shape[0]))

    @property
    def _timm(self) -> Any:
        return self.timm_model


def create(
    name: str, size: int | None = None, channels: int = 3, drop_path: float = 0.0, seed: int | None = None
) -> Backbone:
    """Create a randomly initialised backbone for square images of `size` px (by default its native size)."""
    if channels < 1:
        raise UserError(f"channels must be at least 1, not {channels}.")
    if not 0 <= drop_path < 1:
        raise UserError(f"drop_path must be at least 0 and below 1, not {drop_path}.")
    entry = make_entry(name)
    size = entry.size if size is None else size
    model_args = {**entry.model_args, "in_chans": channels, "drop_path_rate": drop_path}
    return build(name, entry.network, model_args | _size_args(entry, size), size, seed)


def build(name: str, architecture: str, model_args: dict[str, Any], size: int, seed: int | None = None) -> Backbone:
    """Build a backbone from the arguments that a saved model records."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        if architecture in CUSTOM_MODELS:
            model = CUSTOM_MODELS[architecture](**model_args)
        else:
            model = timm.create_model(architecture, pretrained=False, num_classes=0, **model_args)
    return Backbone(name, model, architecture, model_args, size)


def recreate(backbone: Backbone, size: int) -> Backbone:
    """Build the same network for images of `size` px, randomly initialised.

    Swin accepts any size unchanged; rebuilt for a different one, it would shift windows that it did not shift before.
    """
    entry, args = make_entry(backbone.name), backbone.model_args
    sized = args if "strict_img_size" in args else args | _size_args(entry, size)
    return build(backbone.name, backbone.architecture, sized, size, seed=0)


def make_entry(name: str) -> names.Entry:
    """Return the entry of a tested network, or make one for another timm model of a supported family."""
    if known := names.find_entry(name):
        return known
    if not names.is_supported_family(name) or not timm.is_model(name):
        raise names.make_unknown_error(name, (n for n in timm.list_models() if names.is_supported_family(n)))
    cfg: Any = timm.get_pretrained_cfg(name)
    return names.Entry(name, parameters=0, grid=0, dim=0, size=int(cfg.input_size[-1]))


def _size_args(entry: names.Entry, size: int) -> dict[str, Any]:
    if entry.network.startswith(("vit_", "deit_", "t2t_vit")) or entry.network == "pvt":
        return {"img_size": size}
    if entry.network == "vil":
        return {"img_size": max(size, entry.size)}  # size of its tables, which serve every smaller size
    if entry.network.startswith("swin_"):
        # Below the native size the windows stay those of the native grid, as in EsViT. The bias tables then fit at
        # every size, and a grid that is smaller than a window is padded.
        return {"img_size": max(size, entry.size), "strict_img_size": False}
    return {}
