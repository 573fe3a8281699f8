"""Trained detectors and segmentation networks on disk: the weights of all parts, and what is needed to use them."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import torch

from vitling.backbones.saved import build_saved
from vitling.backbones.transfer import check_finite, check_tensors
from vitling.errors import InvalidFile, UserError
from vitling.evaluation.bundle import CONFIG, WEIGHTS, find_bundle, is_dense, read_config, write_network
from vitling.evaluation.config import Weights
from vitling.loading import convert, read_safetensors
from vitling.ranges import check_ranges
from vitling.runs.dense_model import DenseMeta, DenseModel, build_objective
from vitling.views.plan import Group, Plan

_BACKBONE = "backbone.timm_model."  # start of the names of the backbone's tensors


def save_dense(folder: Path, model: DenseModel) -> None:
    """Write a model folder."""
    backbone = model.objective.backbone
    about = {"backbone": backbone.name, **asdict(model.meta)}
    network = {"architecture": backbone.architecture, "model_args": backbone.model_args}
    write_network(folder, model.objective.state_dict(), {**network, "vitling": about})


def find_dense(path: str | os.PathLike, weights: Weights = "last") -> Path | None:
    """Return the model folder of a run if it detects or segments, else None."""
    folder = find_bundle(path, weights)
    return folder if is_dense(read_config(folder)) else None


def load_dense(folder: Path, device: torch.device | str = "cpu") -> DenseModel:
    """Load a model folder; raise UserError if its description and its weights do not make a network."""
    config = read_config(folder)
    about = config["vitling"]
    meta: DenseMeta = convert(about, DenseMeta, folder / CONFIG)
    check_ranges(meta, where=folder / CONFIG)
    if not len(meta.mean) == len(meta.std) == meta.channels:
        raise InvalidFile(folder / CONFIG, f"expected {meta.channels} numbers, one per channel", "mean, std")
    if not meta.class_names:
        raise InvalidFile(folder / CONFIG, "expected at least one name", "class_names")
    weights = read_safetensors(folder / WEIGHTS)
    try:
        check_tensors(weights)
        check_finite(weights)
        shapes = {
            key.removeprefix(_BACKBONE): tuple(v.shape) for key, v in weights.items() if key.startswith(_BACKBONE)
        }
        backbone = build_saved(about["backbone"], config["architecture"], config["model_args"], meta.size, shapes)
        objective = build_objective(backbone, Plan((Group(meta.size),)), meta)
        objective.load_state_dict(weights)
    except (UserError, RuntimeError) as error:
        raise InvalidFile(folder, f"{CONFIG} and {WEIGHTS} do not fit together. {str(error).rstrip('.')}") from error
    return DenseModel(objective.to(device).eval(), meta)
