"""Weights from a file into a backbone, perhaps at another size: what was copied, resized and left out."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone, like
from vitling.backbones.position import Grid, resize_map, resize_positions
from vitling.errors import UserError

_WRAPPERS = ("state_dict", "model", "teacher", "student", "model_state_dict", "objective", "backbone")
_TEACHER = "teacher.backbone."
_PREFIXES = ("module.", "model.", "backbone.", "timm_model.", "encoder.", "_orig_mod.")
_TABLE = "relative_position_bias_table"
_HEADS = ("head.", "head_dist.", "fc.", "classifier.")
_DROPPED = "a head: dropped"


@dataclass
class Transfer:
    """`left_out` names what the source had and the backbone did not take, with the reason; `missing` what the
    backbone has and the source had not, so that it keeps its initial values."""

    copied: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def dropped_heads(self) -> list[str]:
        return [name for name, reason in self.left_out.items() if reason == _DROPPED]

    def summary(self) -> str:
        return (
            f"{len(self.copied)} tensors copied, {len(self.resized)} resized, {len(self.left_out)} left out, "
            f"{len(self.missing)} of the backbone not in the source"
        )


def load_weights(backbone: Backbone, source: Path | str | dict[str, Any]) -> Transfer:
    """Fill the backbone from a timm-style or vitling state dict; it is left as it was when nothing fits."""
    weights = _as_timm_names(_unwrapped(source if isinstance(source, dict) else read_weights(Path(source))))
    own = backbone.timm_model.state_dict()
    transfer, fitted = Transfer(), {}
    for name, value in weights.items():
        if name not in own:
            transfer.left_out[name] = _DROPPED if name.startswith(_HEADS) else "the backbone has no such tensor"
        elif value.shape == own[name].shape:
            transfer.copied.append(name)
            fitted[name] = value
        elif (resized := _resized(backbone, name, value, own[name])) is not None:
            transfer.resized.append(name)
            fitted[name] = resized
        else:
            transfer.left_out[name] = f"its shape {list(value.shape)} is not {list(own[name].shape)}"
    if not fitted:
        raise UserError(_nothing_fits(backbone, weights, transfer))
    transfer.missing = [name for name in own if name not in fitted]
    backbone.timm_model.load_state_dict(fitted, strict=False)
    return transfer


def resize_backbone(backbone: Backbone, size: int) -> Backbone:
    """The same network built for images of `size` px, with positions resized; itself, where that is its size."""
    if size == backbone.size:
        return backbone
    other, weights = like(backbone, size), backbone.timm_model.state_dict()
    transfer = load_weights(other, weights)
    lost = {*transfer.left_out, *transfer.missing} & weights.keys()
    if lost:
        raise ValueError(f"{backbone.name} at {size} px has no place for {', '.join(sorted(lost))}")
    return other.to(next(backbone.parameters()).device).train(backbone.training)


def read_weights(path: Path) -> dict[str, Any]:
    """The content of a weights file. Nothing in it is run: a pickle with more than tensors is refused."""
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise UserError(f"{path} is no weights file: .safetensors, .pth, .pt and .bin are.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} is damaged, or holds Python objects beside tensors, and reading those could run any "
            "code. Save its state dict alone, best as .safetensors."
        ) from error
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as weights: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not a state dict.")
    return content


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from error


def _unwrapped(content: dict[str, Any]) -> dict[str, Tensor]:
    while inner := next((content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)), None):
        content = inner
    if any(name.startswith(_TEACHER) for name in content):  # a checkpoint of DINO or EsViT, which keep their teacher
        content = {name: value for name, value in content.items() if name.startswith(_TEACHER)}
    return {_bare(name.removeprefix(_TEACHER)): value for name, value in content.items() if isinstance(value, Tensor)}


def _bare(name: str) -> str:
    while prefix := next((p for p in _PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def _as_timm_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Swin's release (and timm before 0.9) counts the merging of patches to the stage before it."""
    if "layers.0.downsample.reduction.weight" not in weights:
        return weights
    return {re.sub(r"^layers\.(\d+)\.downsample", _one_later, name): value for name, value in weights.items()}


def _one_later(found: re.Match) -> str:
    return f"layers.{int(found[1]) + 1}.downsample"


def _resized(backbone: Backbone, name: str, value: Tensor, own: Tensor) -> Tensor | None:
    if name.endswith("pos_embed") and value.ndim == 3 and value.shape[2] == own.shape[2]:
        return _resized_positions(value, own, backbone.grid_size() if name == "pos_embed" else _square(own))
    if name.endswith(_TABLE) and value.shape[1:] == own.shape[1:]:
        return _resized_table(value, own)
    return None


def _square(positions: Tensor) -> Grid:
    """The grid of a stage of PVT, but for its class token."""
    side = math.isqrt(positions.shape[1])
    return side, side


def _resized_positions(value: Tensor, own: Tensor, new: Grid) -> Tensor | None:
    prefix = own.shape[1] - new[0] * new[1]
    side = round((value.shape[1] - prefix) ** 0.5)
    if side < 1 or side * side + prefix != value.shape[1]:
        return None
    return resize_positions(value, (side, side), new)


def _resized_table(value: Tensor, own: Tensor) -> Tensor:
    """A Swin bias table, [(2W-1)^2, heads], for another window W: plain bicubic, as Swin's release does."""
    old, new = (math.isqrt(len(t)) for t in (value, own))
    maps = resize_map(value.T.reshape(1, -1, old, old), (new, new))
    return maps.reshape(-1, new * new).T


def _nothing_fits(backbone: Backbone, weights: dict[str, Tensor], transfer: Transfer) -> str:
    if not weights:
        return f"The source holds no tensors, so there is nothing to load into {backbone.name}."
    name, reason = next(iter(transfer.left_out.items()))
    return (
        f"None of the {len(weights)} tensors fits {backbone.name}. {name}, for one, was left out: {reason}. "
        "Is it a checkpoint of another architecture?"
    )
