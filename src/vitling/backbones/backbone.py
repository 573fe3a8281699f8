"""`create(name, size)` gives a `Backbone`; calling it gives `Features`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitling.backbones import names
from vitling.backbones.attention import attention_of, last_block, recorded, watched
from vitling.backbones.cvt import CvT
from vitling.backbones.cvt4 import CvT4
from vitling.backbones.depth import with_one_depth
from vitling.backbones.families import family_of
from vitling.backbones.features import Features, Stages
from vitling.backbones.patches import as_products
from vitling.backbones.position import Grid
from vitling.backbones.pvt import PVT
from vitling.backbones.swin import UnbiasedSwin, with_padding_first
from vitling.backbones.t2t import T2TViT
from vitling.backbones.vil import ViL
from vitling.errors import UserError

# architectures that timm lacks
CUSTOM_MODELS: dict[str, type[nn.Module]] = {
    "t2t_vit": T2TViT,
    "cvt": CvT,
    "cvt4": CvT4,
    "pvt": PVT,
    "vil": ViL,
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
        self.family = family_of(timm_model, name)
        self.grid_size(size)
        as_products(timm_model)
        with_padding_first(timm_model)
        with_one_depth(timm_model)
        if isinstance(timm_model, VisionTransformer):
            timm_model.patch_embed.strict_img_size = False  # our position step takes any grid

    @property
    def dim(self) -> int:
        return int(self._timm.num_features)

    @property
    def channels(self) -> int:
        return int(self.model_args["in_chans"])

    @property
    def classifier_name(self) -> str:
        """Where timm keeps the linear head: head, head.fc, fc."""
        return str(self._timm.pretrained_cfg["classifier"])

    def grid_size(self, size: int | Grid | None = None) -> Grid:
        """Tokens down and across for an input of this size; a size that does not fit is an error."""
        size = self.size if size is None else size
        height, width = (size, size) if isinstance(size, int) else size
        return self.family.grid_of(self.timm_model, height, width)

    def token_centres(self, side: int, device: torch.device | None = None) -> Tensor:
        """Where rows, or columns, of tokens lie in an image of so many pixels, from 0 to 1."""
        return self.family.token_centres(self.timm_model, side, device)

    def blocks(self) -> list[nn.Module]:
        """Where the time goes: the blocks, of which many are alike."""
        return self.family.blocks(self.timm_model)

    def no_decay(self) -> set[str]:
        """Names, as in `named_parameters()`, of matrices that weight decay must leave alone."""
        listed = self._timm.no_weight_decay() if hasattr(self.timm_model, "no_weight_decay") else ()
        return {f"timm_model.{name}" for name, _ in self.timm_model.named_parameters() if name in listed}

    def forward(self, x: Tensor, stages: Stages = False, attention: bool = False) -> Features:
        self.grid_size((x.shape[-2], x.shape[-1]))
        if not attention:
            return self.family.run(self.timm_model, x, stages)
        block = last_block(self.timm_model)
        with recorded(watched(block)) as seen:
            features = self.family.run(self.timm_model, x, stages)
        return replace(features, attention=attention_of(block, seen, batch=x.shape[0]))

    @property
    def _timm(self) -> Any:
        return self.timm_model


def create(
    name: str, size: int | None = None, channels: int = 3, drop_path: float = 0.0, seed: int | None = None
) -> Backbone:
    """A freshly initialised backbone for square images of `size` px (its native size if not given)."""
    if channels < 1 or not 0 <= drop_path < 1:
        raise UserError(f"channels={channels}, drop_path={drop_path}: at least 1, and from 0 to below 1.")
    entry = names.find_entry(name) or _untested(name)
    size = entry.size if size is None else size
    model_args = {**entry.model_args, "in_chans": channels, "drop_path_rate": drop_path}
    return build(name, entry.network, model_args | _size_args(entry, size), size, seed)


def build(name: str, architecture: str, model_args: dict[str, Any], size: int, seed: int | None = None) -> Backbone:
    """A backbone from what a saved model says of itself."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        if architecture in CUSTOM_MODELS:
            model = CUSTOM_MODELS[architecture](**model_args)
        else:
            model = timm.create_model(architecture, pretrained=False, num_classes=0, **model_args)
    return Backbone(name, model, architecture, model_args, size)


def like(backbone: Backbone, size: int) -> Backbone:
    """Another one of its kind for images of `size` px, freshly initialised. A Swin takes any size as it is: built
    anew, its windows would be shifted where they were not."""
    entry, args = names.find_entry(backbone.name) or _untested(backbone.name), backbone.model_args
    sized = args if "strict_img_size" in args else args | _size_args(entry, size)
    return build(backbone.name, backbone.architecture, sized, size, seed=0)


def _untested(name: str) -> names.Entry:
    if not names.of_a_known_family(name) or not timm.is_model(name):
        raise names.unknown(name, (n for n in timm.list_models() if names.of_a_known_family(n)))
    cfg: Any = timm.get_pretrained_cfg(name)
    return names.Entry(name, parameters=0, grid=0, dim=0, size=int(cfg.input_size[-1]))


def _size_args(entry: names.Entry, size: int) -> dict[str, Any]:
    if entry.network.startswith(("vit_", "deit_", "t2t_vit")) or entry.network == "pvt":
        return {"img_size": size}
    if entry.network == "vil":
        return {"img_size": max(size, entry.size)}  # of its tables, which serve every smaller size
    if entry.network.startswith("swin_"):
        # Below its native size the windows stay those of the native grid, as in EsViT: the bias tables then
        # fit at every size, and a grid that is smaller than a window is padded.
        return {"img_size": max(size, entry.size), "strict_img_size": False}
    return {}
