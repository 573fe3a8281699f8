"""`vitling export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from vitling.commands.flags import Out, Run
from vitling.console import echo
from vitling.evaluation.config import Weights


def export(run: Run, out: Out, format: Literal["auto", "timm", "onnx"] = "auto", weights: Weights = "last") -> None:
    """Export a model for timm (safetensors) or as ONNX.

    Args:
        run: A run directory or a model folder.
        out: A folder (timm) or a file that ends in .onnx.
        format: timm: safetensors and config.json; onnx: one file, checked against torch. auto: by the suffix of --out.
        weights: Weights of the last epoch, or of the best epoch on validation.
    """
    from vitling.evaluation.export import export as export_model

    difference = export_model(run, out, format, weights)
    echo(f"Saved to {out} (largest difference from torch on random images: {difference:.1e})")
    if (described := Path(out).with_suffix(".json")).exists() and Path(out).is_file():
        echo(f"  {described} describes its input, output and classes")
