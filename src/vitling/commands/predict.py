"""`vitling predict`."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import arg

from vitling.commands.flags import Images, OptionalOut, Run, Weights
from vitling.console import echo
from vitling.ranges import AT_LEAST_1, FRACTION


def predict(
    run: Run,
    images: Images,
    top: Annotated[int, AT_LEAST_1] = 5,
    abstain: Annotated[float | None, FRACTION, arg(help_behavior_hint="")] = None,
    format: Literal["table", "csv", "json"] = "table",
    out: OptionalOut = None,
    weights: Weights = "last",
    coverage: Annotated[float | None, arg(help_behavior_hint="")] = None,
) -> None:
    """Classify images and print a table, CSV or JSON.

    Args:
        run: A run directory or a model folder.
        images: Image files, folders or globs.
        top: Number of classes to list per image.
        abstain: Answer (unsure) if the highest probability is below this.
        format: Output format.
        out: Write to this file instead of the terminal.
        weights: Weights of the last epoch, or of the best epoch on validation.
        coverage: Also list, for each image, a set of classes that contains the true one with this probability (0.95).
    """
    from vitling.evaluation.predict import predict as classify

    classify(run, images, top, abstain, format, out, weights, coverage)
    if out:
        echo(f"Saved to {out}")
