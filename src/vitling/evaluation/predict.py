"""`vitling predict`: predictions for images, as a table, CSV or JSON."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vitling.console import Console, Log
from vitling.data.sources.source import IMAGE_SUFFIXES, UNREAD_SUFFIXES
from vitling.errors import UserError
from vitling.evaluation.bundle import load
from vitling.evaluation.config import Weights, check_coverage
from vitling.evaluation.inputs import find_images
from vitling.evaluation.model import BATCH, Prediction
from vitling.files import check_writable, make_csv, write_file
from vitling.formatting import escape_json, make_safe, shorten_list

Format = Literal["auto", "table", "csv", "json"]
CSV_START, JSON_START = "file,answer,", '[\n  {\n    "file": '  # of files of predictions
FILE_WIDTH = 120  # columns of a table that is not printed to a terminal, at least


def predict(
    model_path: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    top: int = 5,
    abstain: float | None = None,
    format: Format = "auto",
    out: str | os.PathLike | None = None,
    weights: Weights = "last",
    coverage: float | None = None,
) -> list[Prediction]:
    """Predict files, folders and globs, and write the predictions to `out` or to the terminal.

    The suffix of `out` decides the format, unless it is given; a table if it is neither .csv nor .json.
    """
    if not inputs:
        raise UserError("No images given. Name files, folders or globs: vitling predict RUN IMAGES ...")
    if coverage is not None:
        check_coverage(coverage)
    if out is not None:
        check_writable(out)
        _check_earlier(Path(out))
    model = load(model_path, weights)
    if coverage is not None:
        model.find_set_threshold(coverage)
    images = find_images(inputs, IMAGE_SUFFIXES | UNREAD_SUFFIXES)  # photos such as HEIC are listed even if unreadable
    predictions: list[Prediction] = []
    with Log().progress("Predicting", len(images)) as progress:
        for start in range(0, len(images), BATCH):
            predictions += model.predict(images[start : start + BATCH], top, abstain, coverage)
            progress(len(predictions))
    if format == "auto":
        suffix = Path(out or "").suffix.lower()
        format = "csv" if suffix == ".csv" else "json" if suffix == ".json" else "table"
    colours = out is None and Console().is_terminal
    text = {"csv": format_csv, "json": format_json}.get(format, partial(format_table, colours=colours))(predictions)
    if out is None:
        sys.stdout.write(make_safe(text) if format == "csv" else text)  # a pipe may end at a terminal
    else:
        write_file(out, text)
    if all(p.error for p in predictions):
        raise UserError(f"None of the images could be read. {predictions[0].source}: {predictions[0].error}.")
    if unread := [p.source for p in predictions if p.error]:
        names = shorten_list([_shorten_path(name) for name in unread])
        Log().warning(f"{len(unread):,} of {len(predictions):,} images could not be read: {names}.")
    return predictions


def _check_earlier(out: Path) -> None:
    """Raise UserError if predictions would replace a CSV or JSON file of another kind, such as labels."""
    start = {".csv": CSV_START, ".json": JSON_START}.get(out.suffix.lower(), "")
    if out.is_file() and out.stat().st_size and out.read_bytes()[: len(start)] != start.encode():
        raise UserError(f"--out {out} exists and does not contain predictions. Choose another name.")


def format_answer(prediction: Prediction) -> str:
    """Format the predicted label, or labels, for one cell."""
    if prediction.error:
        return ""
    if prediction.unsure:
        return "(unsure)"
    return prediction.label or "|".join(prediction.labels) or "(none)"


def format_csv(predictions: Sequence[Prediction]) -> str:
    most = max((len(p.top) for p in predictions), default=0)
    ranked = [f"{what}_{k}" for k in range(1, most + 1) for what in ("class", "probability")]
    has_sets = any(p.prediction_set for p in predictions)
    sets = ["prediction_set"] if has_sets else []
    rows = [["file", "answer", "probability", "unfamiliar", *sets, "error", *ranked]]
    for p in predictions:
        cells = [cell for name, value in p.top for cell in (name, f"{value:.6f}")]
        sure = "" if p.probability is None else f"{p.probability:.6f}"
        cells += [""] * (len(ranked) - len(cells))  # an image that cannot be read has no classes
        unfamiliar = "" if p.unfamiliar is None else str(p.unfamiliar).lower()
        sets = ["|".join(p.prediction_set)] if has_sets else []
        rows.append([p.source, format_answer(p), sure, unfamiliar, *sets, p.error or "", *cells])
    return make_csv(rows)


def format_json(predictions: Sequence[Prediction]) -> str:
    rows: list[dict[str, Any]] = []
    for p in predictions:
        ranked = [{"class": name, "probability": value} for name, value in p.top]
        rows.append({"file": p.source, "answer": format_answer(p), **asdict(p), "top": ranked})
        del rows[-1]["source"]
    return escape_json(json.dumps(rows, indent=2, ensure_ascii=False)) + "\n"


def format_table(predictions: Sequence[Prediction], colours: bool = False) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    names = [_shorten_path(p.source) for p in predictions]
    answers = [format_answer(p) for p in predictions]
    extra = ["prediction set"] if any(p.prediction_set for p in predictions) else []
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title, words, least in (("file", names, 26), ("answer", answers, 14)):
        table.add_column(title, overflow="fold", min_width=min(least, max(map(len, words), default=0)))
    for title in ("prob.", *extra, "then"):
        table.add_column(title, overflow="fold")
    for p, name, answer in zip(predictions, names, answers):
        if p.error:
            table.add_row(name, Text("cannot be read", "red"), *[""] * (1 + len(extra)), p.error)
            continue
        rest = p.top[1:] if p.label else p.top  # unsure or multi-label: the answer column does not show the first
        then = ", ".join(f"{other} {value:.1%}" for other, value in rest)
        cell = Text.assemble(answer, ("\nunfamiliar", "yellow") if p.unfamiliar else "")
        table.add_row(name, cell, f"{p.probability:.1%}", *([", ".join(p.prediction_set)] if extra else []), then)
    text = io.StringIO()
    width = Console().width
    Console(file=text, width=width if colours else max(width, FILE_WIDTH), force_terminal=colours).print(table)
    return text.getvalue()


def _shorten_path(path: str) -> str:
    return str(Path(*Path(path).parts[-2:]))
