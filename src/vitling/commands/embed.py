"""`vitling embed`."""

from __future__ import annotations

import sys

from vitling.commands.flags import Images, Out, Run, Weights
from vitling.console import echo
from vitling.data.config import DataConfig


def embed(
    run: Run,
    images: Images,
    out: Out,
    weights: Weights = "last",
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """Write features of images to an npz or Parquet file.

    Args:
        run: A run directory or a model folder.
        images: One dataset (all its splits, with labels), or image files and globs.
        out: A file that ends in .npz or .parquet.
        weights: Weights of the last epoch, or of the best epoch on validation.
        data: How images are read; channels and bits are always the model's.
    """
    from vitling.evaluation.embed import embed as write_features
    from vitling.runs.evaluate import make_opening_recorder

    for name, reason in write_features(run, images, out, weights, make_opening_recorder(run), data).items():
        echo(f"Skipped: {name}: {reason}", file=sys.stderr)
    echo(f"Saved to {out}")
