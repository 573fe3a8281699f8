"""`vitling embed`."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Literal

from tyro.conf import arg

from vitling.commands.flags import Images, Out, Run
from vitling.console import echo
from vitling.data.config import DataConfig
from vitling.evaluation.config import Weights


def embed(
    run: Run,
    images: Images,
    out: Out,
    for_: Annotated[Literal["atlas", "fiftyone", "spotlight"] | None, arg(name="for", help_behavior_hint="")] = None,
    weights: Weights = "last",
    data: DataConfig = DataConfig(),  # noqa: B008
) -> None:
    """Write features of images to an npz or Parquet file.

    Args:
        run: A run directory or a model folder.
        images: One dataset (all its splits, with labels), or image files and globs.
        out: A file that ends in .npz or .parquet.
        for_: Write a table with predictions, places and neighbours instead, for Embedding Atlas (.parquet), FiftyOne
            (.csv) or Spotlight (.parquet).
        weights: Weights of the last epoch, or of the best epoch on validation.
        data: How images are read; channels and bits are always the model's.
    """
    from vitling.evaluation.embed import embed as write_features
    from vitling.runs.evaluate import make_opening_recorder

    skipped = write_features(run, images, out, weights, make_opening_recorder(run), data, for_)
    for name, reason in skipped.items():
        echo(f"Skipped: {name}: {reason}", file=sys.stderr)
    echo(f"Saved to {out}")
    if for_ is not None:
        echo(f"Open it: {_describe_opening(for_, out)}")


def _describe_opening(tool: str, out: str) -> str:
    if tool == "fiftyone":
        return f"fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.CSVDataset, labels_path={out!r})"
    if tool == "atlas":
        return f"embedding-atlas {shlex.quote(out)} --x x --y y --neighbors neighbors"
    return f"spotlight {shlex.quote(out)}"
