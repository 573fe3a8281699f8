"""What uses a trained network."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from tyro.conf import arg

from vitling.commands.flags import Images, OptionalOut, Out, Run, Weights
from vitling.data.config import DataConfig


def predict(
    run: Run,
    images: Images,
    top: int = 5,
    abstain: Annotated[float | None, arg(help_behavior_hint="")] = None,
    format: Literal["table", "csv", "json"] = "table",
    out: OptionalOut = None,
    weights: Weights = "last",
) -> None:
    """Answers for images, folders, globs: table, CSV or JSON.

    Args:
        run: A run directory or a model folder.
        images: Files, folders, globs.
        top: How many classes to name for each image.
        abstain: Below this probability the answer is (unsure).
        format: Table, CSV or JSON.
        out: A file instead of the terminal.
        weights: Of the last epoch, or of the best on validation.
    """
    from vitling.evaluation.predict import predict as answer

    answer(run, images, top, abstain, format, out, weights)
    if out:
        print(f"Written: {out}")


def embed(
    run: Run,
    images: Images,
    out: Out,
    weights: Weights = "last",
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """Features of images, or of a whole data set, as npz or parquet.

    Args:
        run: A run directory or a model folder.
        images: One data set (all its splits, with labels), or files and globs.
        out: A file that ends in .npz or .parquet.
        weights: Of the last epoch, or of the best on validation.
        data: How the images are read; channels and bits are the model's.
    """
    from vitling.evaluation.embed import embed as write
    from vitling.runs.evaluate import log_of_openings

    for name, reason in write(run, images, out, weights, log_of_openings(run), data).items():
        print(f"Left out: {name}: {reason}", file=sys.stderr)
    print(f"Written: {out}")


def export(run: Run, out: Out, format: Literal["timm", "onnx"] = "timm", weights: Weights = "last") -> None:
    """A trained model as timm reads it (safetensors), or as ONNX.

    Args:
        run: A run directory or a model folder.
        out: A folder (timm) or a file that ends in .onnx.
        format: timm: safetensors and config.json; onnx: one file, checked against torch.
        weights: Of the last epoch, or of the best on validation.
    """
    from vitling.evaluation.export import export as write

    difference = write(run, out, format, weights)
    print(f"Written: {out} (largest difference from torch on random images: {difference:.1e})")
