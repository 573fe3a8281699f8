"""Trained models on disk: `model.safetensors` with timm's names, and a `config.json` that timm can read.

`timm.create_model("local-dir:FOLDER", pretrained=True)` gives the same logits if timm has the network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors.torch import save
from torch import Tensor, nn

from vitling.backbones import Backbone
from vitling.backbones.saved import build_saved
from vitling.backbones.transfer import check_finite, check_tensors
from vitling.errors import InvalidFile, UserError
from vitling.evaluation.config import Weights
from vitling.evaluation.familiarity import count_pixel_features
from vitling.evaluation.meta import BundleMeta
from vitling.evaluation.model import Model
from vitling.evaluation.trust import Trust, load_trust, save_trust
from vitling.files import is_run, write_file, write_json
from vitling.loading import convert, read_json, read_safetensors

__all__ = ["BundleMeta", "load", "load_bundle", "save_bundle"]

WEIGHTS, CONFIG = "model.safetensors", "config.json"


class BundleSection(TypedDict):
    """The vitling section of config.json in a model folder; the rest of it is a BundleMeta."""

    backbone: str


class BundleConfig(TypedDict):
    """config.json of a model folder."""

    architecture: str
    model_args: dict[str, bool | int | float | str | list[int | float] | None]
    vitling: BundleSection


def save_bundle(
    folder: str | os.PathLike, backbone: Backbone, head: nn.Linear | None, meta: BundleMeta, trust: Trust | None = None
) -> None:
    """Write the bundle of a classifier, or of a network without a head."""
    _check(backbone, head, meta)
    save_trust(Path(folder), trust or Trust())
    weights = dict(backbone.timm_model.state_dict()) | _name_head_weights(backbone, head)
    write_network(Path(folder), weights, _describe_bundle(backbone, head, meta))


def write_network(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write weights, then config.json, so a folder that has one is complete."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    write_file(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_json(folder / CONFIG, config)


def load_bundle(folder: str | os.PathLike, device: torch.device | str = "cpu") -> Model:
    """Load a model folder; raise UserError if its description and its weights do not make a network."""
    folder = Path(folder)
    config = read_config(folder)
    about = config["vitling"]
    if is_dense(config):
        raise UserError(
            f"{folder} was trained by `vitling {config['vitling']['task']}`. Use it with vitling predict and vitling "
            "evaluate, or start from it with --from."
        )
    meta = BundleMeta.from_dict(about, folder / CONFIG)
    weights = read_safetensors(folder / WEIGHTS)
    head_weights = {name: weights.pop(name) for name in list(weights) if name.startswith(("head.", "fc."))}
    try:
        check_tensors(weights | head_weights)
        check_finite(weights | head_weights)
        shapes = {name: tuple(value.shape) for name, value in weights.items()}
        backbone = build_saved(about["backbone"], config["architecture"], config["model_args"], meta.size, shapes)
        backbone.timm_model.load_state_dict(weights)
        head = _load_head(backbone, meta, head_weights)
        if (channels := config["model_args"]["in_chans"]) != meta.channels:
            raise UserError(f"The network takes {channels} channels, the images have {meta.channels}.")
    except (UserError, RuntimeError) as error:
        raise InvalidFile(folder, f"{CONFIG} and {WEIGHTS} do not fit together. {str(error).rstrip('.')}") from error
    trust = load_trust(folder, backbone.dim, count_pixel_features(meta.size, meta.channels))
    return Model(backbone, head, meta, device, trust)


def _load_head(backbone: Backbone, meta: BundleMeta, weights: dict[str, Tensor]) -> nn.Linear | None:
    if not meta.class_names:
        return None
    weight, bias = (weights.get(f"{backbone.classifier_name}.{part}") for part in ("weight", "bias"))
    shape = (len(meta.class_names), backbone.dim)
    if weight is None or bias is None or weight.shape != shape or bias.shape != shape[:1]:
        raise UserError(f"The head must be [{shape[0]}, {shape[1]}], a row for each class, with a bias")
    head = nn.Linear(backbone.dim, len(meta.class_names))
    head.load_state_dict({"weight": weight, "bias": bias})
    return head


def load(path: str | os.PathLike, weights: Weights = "last", device: torch.device | str = "auto") -> Model:
    """Load the model of a run directory (`best`: of the best epoch on validation) or of a bundle."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_bundle(find_bundle(path, weights), device)


def find_bundle(path: str | os.PathLike, weights: Weights = "last") -> Path:
    """Return the bundle of a run directory, or the given bundle itself."""
    path = Path(path)
    inside = path / ("best" if weights == "best" else "model")
    if (inside / CONFIG).is_file():
        return inside
    if weights == "last" and (path / CONFIG).is_file() and (path / WEIGHTS).is_file():
        return path
    if not path.exists():
        raise UserError(f"{path} does not exist. Give a run directory or a model folder.")
    if weights == "best" and (path / "model" / CONFIG).is_file():
        raise UserError(f"{path} has no best/ because it was not validated; use --weights last.")
    raise UserError(
        f"{path} has no trained model. {_explain_missing(path)}Give a run directory with {inside.name}/ in it, or a "
        f"folder with the {WEIGHTS} and {CONFIG} that vitling saves."
    )


def _explain_missing(path: Path) -> str:
    """Describe what the folder is instead, if that is recognisable."""
    seeds = sorted(folder.name for folder in path.glob("seed*") if (folder / "model" / CONFIG).is_file())
    if seeds:
        return f"It has runs of several seeds; the first is {path / seeds[0]}. "
    if is_run(path) and not (path / "result.json").is_file():
        return "The run is not finished; continue it with --resume. "
    return ""


def _describe_bundle(backbone: Backbone, head: nn.Linear | None, meta: BundleMeta) -> dict[str, Any]:
    timm_cfg: Any = backbone.timm_model.pretrained_cfg
    pretrained_cfg = {
        "input_size": [meta.channels, meta.size, meta.size],
        "mean": list(meta.mean),
        "std": list(meta.std),
        "crop_pct": meta.crop_fraction,
        "interpolation": "bicubic",
        "classifier": backbone.classifier_name,
        # timm expects 3 input channels in every file, and would sum or drop those of our first convolution
        "first_conv": timm_cfg["first_conv"] if meta.channels == 3 else None,
        "num_classes": 1 if head is None else head.out_features,  # without a head: see _name_head_weights
    }
    model_args = backbone.model_args | ({"num_classes": 0} if head is None else {})
    return {
        "architecture": backbone.architecture,
        "num_classes": pretrained_cfg["num_classes"],
        "num_features": backbone.dim,
        "model_args": model_args,
        "label_names": list(meta.class_names),
        "pretrained_cfg": pretrained_cfg,
        "vitling": {"backbone": backbone.name, **meta.as_dict()},
    }


def _name_head_weights(backbone: Backbone, head: nn.Linear | None) -> dict[str, Tensor]:
    """Give the head timm's names; without a head, use zeros that timm drops because of `num_classes: 0`.

    timm would take a Swin file without any head for one of its old layout.
    """
    if head is None:
        weight, bias = torch.zeros(1, backbone.dim), torch.zeros(1)
    else:
        weight, bias = head.weight, head.bias
    return {f"{backbone.classifier_name}.weight": weight, f"{backbone.classifier_name}.bias": bias}


def _check(backbone: Backbone, head: nn.Linear | None, meta: BundleMeta) -> None:
    if head is not None and (head.bias is None or head.in_features != backbone.dim):
        raise ValueError(f"a head is a Linear with a bias on {backbone.dim} features, not {head}")
    if len(meta.class_names) != (0 if head is None else head.out_features):
        raise ValueError(f"{len(meta.class_names)} class names for the head {head}")
    if meta.channels != backbone.channels or len(meta.mean) != meta.channels or len(meta.std) != meta.channels:
        raise ValueError(f"channels differ: {backbone.channels} in the backbone, {meta} in the meta data")
    if meta.size != backbone.size:
        raise ValueError(f"the backbone was built for {backbone.size} px, the meta data say {meta.size}")


def is_dense(config: dict[str, Any]) -> bool:
    """Return whether a model detects or segments, and so has more parts than a backbone and a head."""
    return config["vitling"].get("task") in ("detect", "segment")


def read_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or "vitling" not in config:
        raise UserError(f"{folder} was not saved by vitling: its {CONFIG} has no vitling section.")
    config = convert(config, BundleConfig, folder / CONFIG)
    config["model_args"].pop("num_classes", None)
    return config
