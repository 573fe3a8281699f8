"""Loading weights into a backbone, possibly of another size, with a record of what was copied, resized or skipped."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone, recreate
from vitling.backbones.position import Grid, resize_map, resize_positions
from vitling.backbones.t2t import T2TViT
from vitling.errors import UserError
from vitling.loading import read_safetensors, read_torch

_WRAPPERS = ("state_dict", "model", "teacher", "student", "model_state_dict", "objective", "backbone")
_MAX_WRAPPERS = 8
_TEACHER = "teacher.backbone."
_PREFIXES = ("module.", "model.", "backbone.", "timm_model.", "encoder.", "_orig_mod.")
_TABLE = "relative_position_bias_table"
_HEADS = ("head.", "head_dist.", "fc.", "classifier.")
_HEAD = "a head"


@dataclass
class Transfer:
    """Names of the tensors that were or were not loaded."""

    copied: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # in the source only or of another shape, with the reason
    missing: list[str] = field(default_factory=list)  # in the backbone only: these keep their initial values

    @property
    def dropped_heads(self) -> list[str]:
        return [name for name, reason in self.skipped.items() if reason == _HEAD]

    def summary(self) -> str:
        return (
            f"{len(self.copied)} tensors copied, {len(self.resized)} resized, {len(self.skipped)} skipped, "
            f"{len(self.missing)} missing from the source"
        )


def load_weights(backbone: Backbone, source: Path | str | dict[str, Any]) -> Transfer:
    """Load a state dict of timm or vitling; raise UserError and change nothing if no tensor fits."""
    if isinstance(source, dict):
        return _load_state(backbone, source)
    content = read_weights(Path(source))
    try:
        return _load_state(backbone, content)
    except UserError as problem:
        raise UserError(f"{source}: {problem}") from None


def _load_state(backbone: Backbone, content: dict[str, Any]) -> Transfer:
    weights = _to_timm_names(_unwrap(content))
    check_tensors(weights)
    own = backbone.timm_model.state_dict()
    transfer, loaded = Transfer(), {}
    for name, value in weights.items():
        if name not in own:
            transfer.skipped[name] = _HEAD if name.startswith(_HEADS) else "not in the backbone"
        elif value.shape == own[name].shape:
            transfer.copied.append(name)
            loaded[name] = value
        elif value.is_floating_point() and (resized := _resize(backbone, name, value, own[name])) is not None:
            transfer.resized.append(name)
            loaded[name] = resized
        else:
            transfer.skipped[name] = f"shape {list(value.shape)} instead of {list(own[name].shape)}"
    if not loaded:
        raise UserError(_explain_mismatch(backbone, weights, transfer))
    transfer.missing = [name for name in own if name not in loaded]
    backbone.timm_model.load_state_dict(loaded, strict=False)
    return transfer


def resize_backbone(backbone: Backbone, size: int) -> Backbone:
    """Build the same network for images of `size` px, with positions resized; return it as is if it has that size."""
    if size == backbone.size:
        return backbone
    other, weights = recreate(backbone, size), backbone.timm_model.state_dict()
    transfer = load_weights(other, weights)
    lost = {*transfer.skipped, *transfer.missing} & weights.keys()
    if lost:
        raise ValueError(f"{backbone.name} at {size} px does not take {', '.join(sorted(lost))}")
    return other.to(next(backbone.parameters()).device).train(backbone.training)


def read_weights(path: Path) -> dict[str, Any]:
    """Read a weights file without running code from it: a pickle with more than tensors raises UserError."""
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise UserError(f"{path} is not a weights file; use .safetensors, .pth, .pt or .bin.")
    return read_torch(path)


def check_tensors(weights: dict[str, Tensor]) -> None:
    """Raise UserError for tensors that no network has: complex, sparse, or larger than the memory behind them."""
    for name, value in weights.items():
        dense = value.layout == torch.strided and not value.is_quantized and value.device.type != "meta"
        if not dense or value.is_complex():
            kind = f"{value.dtype}, {value.layout}, {value.device.type}"
            raise UserError(
                f"The tensor {name} ({kind}) is not a dense real tensor. Save the weights as dense tensors."
            )
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(f"The tensor {name} of shape {list(value.shape)} is larger than its data in the file.")


def check_finite(weights: dict[str, Tensor]) -> None:
    """Raise UserError for a tensor that is not finite: its network would predict NaN."""
    for name, value in weights.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(f"The tensor {name} is not finite.")


def check_outputs(*outputs: Tensor) -> None:
    """Raise UserError unless what a network computed is finite: finite weights can still be too large."""
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise UserError("The network's outputs are not finite: its weights are too large. Train it again.")


def _unwrap(content: dict[str, Any]) -> dict[str, Tensor]:
    for _ in range(_MAX_WRAPPERS):  # a dict may hold itself
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)), None)
        if not inner:
            break
        content = inner
    content = {name: value for name, value in content.items() if isinstance(name, str)}
    if any(name.startswith(_TEACHER) for name in content):  # from DINO or EsViT, whose teacher is the result
        content = {name: value for name, value in content.items() if name.startswith(_TEACHER)}
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    return {_strip_prefixes(name.removeprefix(_TEACHER)): value for name, value in tensors.items()}


def _strip_prefixes(name: str) -> str:
    while prefix := next((p for p in _PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def _to_timm_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename downsampling layers: Swin's release and timm before 0.9 assign them to the preceding stage."""
    if "layers.0.downsample.reduction.weight" not in weights:
        return weights
    return {re.sub(r"^layers\.([0-9]{1,4})\.downsample", _shift_stage, name): value for name, value in weights.items()}


def _shift_stage(found: re.Match) -> str:
    return f"layers.{int(found[1]) + 1}.downsample"


def _resize(backbone: Backbone, name: str, value: Tensor, own: Tensor) -> Tensor | None:
    model = backbone.timm_model
    if name == "pos_embed" and isinstance(model, T2TViT) and model.positions == "recomputed":
        return own
    if name.endswith("pos_embed") and value.ndim == 3 and value.shape[2] == own.shape[2]:
        return _resize_positions(value, own, backbone.grid_size() if name == "pos_embed" else _infer_grid(own))
    if name.endswith(_TABLE) and value.shape[1:] == own.shape[1:]:
        return _resize_table(value, own)
    return None


def _infer_grid(positions: Tensor) -> Grid:
    """Return the grid of a PVT stage's positions, ignoring a class token."""
    side = math.isqrt(positions.shape[1])
    return side, side


def _resize_positions(value: Tensor, own: Tensor, new: Grid) -> Tensor | None:
    prefix = own.shape[1] - new[0] * new[1]
    side = math.isqrt(max(0, value.shape[1] - prefix))
    if value.shape[0] != 1 or side < 1 or side * side + prefix != value.shape[1]:
        return None
    return resize_positions(value, (side, side), new)


def _resize_table(value: Tensor, own: Tensor) -> Tensor | None:
    """Resize a Swin bias table, [(2W-1)^2, heads], for another window W, by plain bicubic as in Swin's release."""
    old, new = (math.isqrt(len(t)) for t in (value, own))
    if old < 1 or old * old != len(value):
        return None
    maps = resize_map(value.T.reshape(1, -1, old, old), (new, new))
    return maps.reshape(-1, new * new).T


def _explain_mismatch(backbone: Backbone, weights: dict[str, Tensor], transfer: Transfer) -> str:
    if not weights:
        return f"The source holds no tensors to load into {backbone.name}."
    name, reason = next(iter(transfer.skipped.items()))
    return (
        f"None of the {len(weights)} tensors fits {backbone.name}; for example {name}: {reason}. "
        "Is this a checkpoint of a different architecture?"
    )
