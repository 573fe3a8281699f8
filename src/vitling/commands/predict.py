"""`vitling predict`."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import arg

from vitling.commands.flags import Images, OptionalOut, Run
from vitling.console import echo
from vitling.errors import UserError
from vitling.evaluation.config import Weights
from vitling.formatting import format_count
from vitling.ranges import AT_LEAST_1, FRACTION

MIN_SCORE = 0.5  # of the detections that are drawn


def predict(
    run: Run,
    images: Images,
    top: Annotated[int, AT_LEAST_1] = 5,
    abstain: Annotated[float | None, FRACTION, arg(help_behavior_hint="")] = None,
    format: Literal["auto", "table", "csv", "json"] = "auto",
    out: OptionalOut = None,
    weights: Weights = "last",
    coverage: Annotated[float | None, arg(help_behavior_hint="")] = None,
    min_score: Annotated[float, FRACTION] = MIN_SCORE,
) -> None:
    """Classify images, or find boxes or masks in them and draw them.

    Models of detect and segment write into the directory --out: each picture with what was found drawn on it, and
    detections.json (COCO results) or masks/ (PNG files whose pixels are the classes).

    Args:
        run: A run directory or a model folder.
        images: Image files, folders or globs.
        top: Number of classes to list per image.
        abstain: Answer (unsure) if the highest probability is below this.
        format: Output format. auto: csv or json by the suffix of --out, otherwise a table.
        out: Write to this file instead of the terminal; a directory for models of detect and segment.
        weights: Weights of the last epoch, or of the best epoch on validation.
        coverage: Also list, for each image, a set of classes that contains the true one with this probability (0.95).
        min_score: Score from which a detection is drawn; detections.json has all.
    """
    from vitling.runs.dense_bundle import find_dense

    if (folder := find_dense(run, weights)) is not None:
        if (top, abstain, coverage) != (5, None, None) or format not in ("auto", "table"):
            raise UserError(
                f"--top, --abstain, --format and --coverage are for classifiers; {run} detects or segments."
            )
        from vitling.runs.dense_use import predict_dense

        pictures = predict_dense(folder, images, out, min_score)
        echo(f"Saved {format_count(len(pictures), 'picture')} to {out}")
        return
    if min_score != MIN_SCORE:
        raise UserError(f"--min-score is for models of detect; {run} is a classifier.")
    from vitling.evaluation.predict import predict as classify

    classify(run, images, top, abstain, format, out, weights, coverage)
    if out:
        echo(f"Saved to {out}")
