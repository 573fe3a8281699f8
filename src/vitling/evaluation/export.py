"""`vitling export`: a trained model for other programs, checked against itself before it is handed out."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import timm
import torch
from torch import Tensor, nn

from vitling.backbones.backbone import CUSTOM_MODELS
from vitling.backbones.swin import matches_timm
from vitling.errors import RunAborted, UserError
from vitling.evaluation.bundle import CONFIG, WEIGHTS, find_bundle, load_bundle, read_config
from vitling.evaluation.model import Model
from vitling.files import check_writable, read_json, write_json

TOLERANCE = 1e-3
_ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def export(
    model_path: str | os.PathLike,
    out: str | os.PathLike,
    format: Literal["timm", "onnx"] = "timm",
    weights: Literal["last", "best"] = "last",
) -> float:
    """Write `out` (a folder for timm, a file for ONNX); gives the largest difference on random images."""
    folder = find_bundle(model_path, weights)
    if format == "onnx":
        return _to_onnx(load_bundle(folder), Path(out))
    _spare_others(Path(out), Path(model_path), folder)
    return _to_timm(folder, Path(out))


class _Whole(nn.Module):
    """Normalised images to logits, or to features where there is no head."""

    def __init__(self, model: Model):
        super().__init__()
        self.backbone = model.backbone
        self.head = model.head or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images).pooled)


def _spare_others(out: Path, given: Path, folder: Path) -> None:
    """An export replaces an earlier export at most: not the run, not its other model, not somebody's config.json."""
    ours = {path.resolve() for path in (given, folder.parent, folder.parent / "model", folder.parent / "best")}
    in_a_run = given.resolve() != folder.resolve() or (folder.parent / "checkpoints").exists()
    if in_a_run and out.resolve() in ours - {folder.resolve()}:
        raise UserError(f"--out {out} belongs to the run itself, which an export must not change. Name another folder.")
    if (out / CONFIG).exists() and not _is_ours(out / CONFIG):
        raise UserError(f"--out {out} holds a {CONFIG} that is not an export of vitling's. Name another folder.")


def _is_ours(config: Path) -> bool:
    try:
        return "vitling" in read_json(config)
    except (OSError, ValueError, TypeError):
        return False


def _to_timm(folder: Path, out: Path) -> float:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; for timm name a folder.")
    architecture = read_config(folder)["architecture"]
    if architecture in CUSTOM_MODELS:
        raise UserError(
            f"timm has no {architecture}, so it cannot load this model. Export it with --format onnx, or use {folder} "
            "as it is: vitling.load reads it."
        )
    model = load_bundle(folder)
    if not matches_timm(model.backbone.timm_model, model.meta.size):
        raise UserError(
            f"At {model.meta.size} px this Swin pads its maps before it rolls them, as EsViT does, unlike timm's: "
            "its answers would differ. Export it with --format onnx, or train it at 224 px."
        )
    check_writable(out / CONFIG)
    out.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, CONFIG):
        if (out / name).resolve() != (folder / name).resolve():
            shutil.copyfile(folder / name, out / name)
    images = _random_images(model, 2)
    with torch.inference_mode():
        theirs = timm.create_model(f"local-dir:{out}", pretrained=True).eval()(images)
        return _checked(theirs, _Whole(model)(images), "timm")


def _to_onnx(model: Model, out: Path) -> float:
    _need_onnx()
    if out.suffix != ".onnx":
        raise UserError(f"{out}: an ONNX file has a name that ends in .onnx.")
    check_writable(out)
    unchecked = out.with_suffix(".part.onnx")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_onnx(model, unchecked)
        difference = _compare_onnx(model, unchecked)
        unchecked.replace(out)
    finally:
        unchecked.unlink(missing_ok=True)
    write_json(out.with_suffix(".json"), _about(model))
    return difference


def _need_onnx() -> None:
    missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX export needs {', '.join(missing)}: pip install 'vitling[onnx]'.")


def _write_onnx(model: Model, path: Path) -> None:
    """One file, weights inside, any batch size."""
    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Whole(model).eval(),
            (_random_images(model, 2),),
            str(path),
            dynamo=True,
            input_names=["images"],
            output_names=[_output_name(model)],
            dynamic_shapes={"images": {0: batch}},
            external_data=False,
            verbose=False,
        )


def _compare_onnx(model: Model, path: Path) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    for batch in (1, 3):  # other batch sizes than it was traced with
        images = _random_images(model, batch)
        (theirs,) = session.run(None, {"images": images.numpy()})
        with torch.inference_mode():
            differences.append(_checked(torch.from_numpy(theirs), _Whole(model)(images), "ONNX"))
    return max(differences)


def _checked(theirs: Tensor, ours: Tensor, what: str) -> float:
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE:  # not <=: NaN must fail too
        raise RunAborted(f"The {what} model differs from ours by {difference:.2g} (limit {TOLERANCE}).")
    return difference


def _about(model: Model) -> dict:
    meta = model.meta
    return {
        "input": {"name": "images", "layout": "NCHW", "shape": ["batch", meta.channels, meta.size, meta.size]},
        "output": _output_name(model),
        "probabilities": {"single": "softmax(logits / temperature)", "multi": "sigmoid(logits / temperature)"}.get(
            meta.task
        ),
        **meta.as_dict(),
    }


def _output_name(model: Model) -> str:
    return "features" if model.head is None else "logits"


def _random_images(model: Model, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, model.meta.channels, model.meta.size, model.meta.size, generator=generator)
