"""Export of trained models to other programs, checked against the original (`vitling export`)."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from torch import Tensor, nn

from vitling.backbones.backbone import CUSTOM_MODELS
from vitling.backbones.swin import matches_timm
from vitling.errors import RunAborted, UserError
from vitling.evaluation.bundle import CONFIG, WEIGHTS, find_bundle, load_bundle, read_config
from vitling.evaluation.config import Weights
from vitling.evaluation.model import Model
from vitling.evaluation.trust import FILE as TRUST
from vitling.files import check_writable, is_run, scratch_folder, sync_file, sync_folder, write_json
from vitling.loading import read_record
from vitling.shortage import is_out_of_memory

TOLERANCE = 1e-3  # largest difference of a logit or feature
_ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def export(
    model_path: str | os.PathLike,
    out: str | os.PathLike,
    format: Literal["auto", "timm", "onnx"] = "auto",
    weights: Weights = "last",
) -> float:
    """Write `out` (a folder for timm, a file for ONNX) and return the largest difference on random images.

    `auto` writes ONNX if `out` ends in .onnx.
    """
    folder = find_bundle(model_path, weights)
    if format == "onnx" or (format == "auto" and Path(out).suffix.lower() == ".onnx"):
        return _export_onnx(load_bundle(folder), Path(out))
    _check_out(Path(out), Path(model_path), folder)
    return _export_timm(folder, Path(out))


class _Network(nn.Module):
    """Normalised images to logits, or to features if the model has no head."""

    def __init__(self, model: Model):
        super().__init__()
        self.backbone = model.backbone
        self.head = model.head or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images).pooled)


def _check_out(out: Path, given: Path, folder: Path) -> None:
    """Raise UserError if the export would replace anything but an earlier export."""
    run_folders = {path.resolve() for path in (given, folder.parent, folder.parent / "model", folder.parent / "best")}
    in_a_run = given.resolve() != folder.resolve() or is_run(folder.parent)
    if in_a_run and out.resolve() in run_folders - {folder.resolve()}:
        raise UserError(f"--out {out} belongs to the run. Name a different folder.")
    if (out / CONFIG).exists() and not _has_keys(out / CONFIG, "vitling"):
        raise UserError(f"--out {out} has a {CONFIG} that is not from vitling. Name a different folder.")


def _has_keys(path: Path, *keys: str) -> bool:
    """Return whether a file holds a JSON object with these keys, as that of an earlier export does."""
    try:
        return set(keys) <= read_record(path, dict[str, Any]).keys()
    except (OSError, UserError):
        return False


def _export_timm(folder: Path, out: Path) -> float:
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; --format timm needs a folder.")
    architecture = read_config(folder)["architecture"]
    if architecture in CUSTOM_MODELS:
        raise UserError(
            f"timm has no {architecture} and cannot load this model. Use --format onnx, or load {folder} with "
            "vitling.load."
        )
    model = load_bundle(folder)
    if not matches_timm(model.backbone.timm_model, model.meta.size):
        raise UserError(
            f"At {model.meta.size} px this Swin pads and shifts its windows as EsViT does, unlike timm, so its outputs "
            "would differ. Use --format onnx, or train at 224 px."
        )
    names = (WEIGHTS, *([TRUST] if (folder / TRUST).exists() else []), CONFIG)
    for name in names:
        check_writable(out / name)
    images = _draw_images(model, 2)
    with scratch_folder(out / WEIGHTS) as unchecked, torch.inference_mode():
        for name in names:
            shutil.copyfile(folder / name, unchecked / name)
        theirs = _load_by_timm(unchecked, folder).eval()(images)
        difference = _measure_difference(theirs, _Network(model)(images), "timm")
        if out.resolve() != folder.resolve():
            _move(unchecked, out, names, (TRUST,))
    return difference


def _load_by_timm(copy: Path, folder: Path) -> nn.Module:
    try:
        return timm.create_model(f"local-dir:{copy}", pretrained=True)
    except Exception as problem:
        if isinstance(problem, OSError) or is_out_of_memory(problem):
            raise
        raise UserError(f"timm cannot load {folder}: {type(problem).__name__}. Use --format onnx.") from None


def _move(source: Path, out: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Move files into `out`, replacing those of an earlier export, which may also have had the `optional` ones.

    The last one marks the export as complete. It is deleted first, so that a kill never leaves a mixture of old and
    new files that looks complete.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        sync_file(source / name)
    for name in (names[-1], *optional):
        (out / name).unlink(missing_ok=True)
    for name in names:
        os.replace(source / name, out / name)
    sync_folder(out)


def _export_onnx(model: Model, out: Path) -> float:
    _require_onnx()
    if out.suffix != ".onnx":
        raise UserError(f"--out {out} must end in .onnx.")
    names = out.name, out.with_suffix(".json").name
    for name in names:
        check_writable(out.parent / name)
    about = out.parent / names[-1]
    if about.exists() and not _has_keys(about, "input", "output", "class_names"):
        raise UserError(
            f"{about} would be replaced by the description of the model, but is not one. Use a different --out."
        )
    with scratch_folder(out) as unchecked:
        _write_onnx(model, unchecked / out.name)
        difference = _compare_onnx(model, unchecked / out.name)
        write_json(unchecked / names[-1], _describe_model(model))
        _move(unchecked, out.parent, names)
    return difference


def _require_onnx() -> None:
    missing = [name for name in _ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX export needs {', '.join(missing)}: pip install 'vitling[onnx]'.")


def _write_onnx(model: Model, path: Path) -> None:
    """Write one file with the weights inside, for any batch size."""
    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Network(model).eval(),
            (_draw_images(model, 2),),
            str(path),
            dynamo=True,
            input_names=["images"],
            output_names=[_output_name(model)],
            dynamic_shapes={"images": {0: batch}},
            external_data=False,
            verbose=False,
        )


def _compare_onnx(model: Model, path: Path) -> float:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would write to the home directory
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    differences = []
    for batch in (1, 3):  # batch sizes it was not traced with
        images = _draw_images(model, batch)
        (theirs,) = session.run(None, {"images": images.numpy()})
        with torch.inference_mode():
            differences.append(_measure_difference(torch.from_numpy(theirs), _Network(model)(images), "ONNX"))
    return max(differences)


def _measure_difference(theirs: Tensor, ours: Tensor, what: str) -> float:
    difference = float((theirs - ours).abs().max())
    if not difference <= TOLERANCE:  # `not <=` also fails for NaN
        raise RunAborted(f"The outputs of the {what} model differ by {difference:.2g} (limit {TOLERANCE}).")
    return difference


def _describe_model(model: Model) -> dict:
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


def _draw_images(model: Model, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, model.meta.channels, model.meta.size, model.meta.size, generator=generator)
