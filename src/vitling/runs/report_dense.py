"""Read the files of a detection or segmentation run for its report: figures by class, and the worst images."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TypedDict

from vitling.loading import parse_json, read_bytes, read_record
from vitling.metric_names import METRIC_NAMES
from vitling.records import Share
from vitling.report.data import DenseClass, DenseReport, Picture
from vitling.runs.dense_pictures import FOLDER, LIST
from vitling.runs.report_files import RunFiles

_NAMES = {"iou": "IoU", "accuracy": "accuracy"}


class _DenseFigures(TypedDict, total=False):
    iou: Share | None
    accuracy: Share | None
    box_ap: Share | None
    mask_ap: Share | None


_COLUMNS = tuple(_DenseFigures.__annotations__)
_ClassSize = TypedDict("_ClassSize", {"class": str, "n": int})


class DenseClassScores(_ClassSize, _DenseFigures): ...


class DenseSplit(TypedDict):
    per_class: list[DenseClassScores]


class DenseEvaluation(TypedDict, total=False):
    """evaluation.json of a run of detect or segment."""

    last: dict[str, DenseSplit]


class _Listed(TypedDict):
    file: str
    image: str
    score: float


def read_dense(files: RunFiles) -> DenseReport | None:
    """Read what the run found on val, or on test if there is no val; None if it held out nothing."""
    path = files.folder / "evaluation.json"
    splits = read_record(path, DenseEvaluation).get("last", {}) if path.exists() else {}
    split = next((name for name in ("val", "test") if name in splits), None)
    if split is None:
        return None
    rows = splits[split]["per_class"]
    columns = [name for name in _COLUMNS if any(name in row for row in rows)]
    classes = (DenseClass(row["class"], row["n"], tuple(row.get(name) for name in columns)) for row in rows)
    names = tuple(METRIC_NAMES[name].display if name in METRIC_NAMES else _NAMES[name] for name in columns)
    return DenseReport(split, names, tuple(classes), tuple(_list_pictures(files, split)))


def _list_pictures(files: RunFiles, split: str) -> list[Picture]:
    folder = files.folder / FOLDER
    path = folder / f"{split}-{LIST}"
    listed = parse_json(read_bytes(path), list[_Listed], path) if path.exists() else []
    what = "mIoU" if files.result.get("task") == "segment" else "F1 at IoU 0.5"
    pictures = []
    for one in listed:
        if Path(one["file"]).name == one["file"] and (folder / one["file"]).is_file():  # no path leaves the run
            source = f"data:image/jpeg;base64,{base64.b64encode(read_bytes(folder / one['file'])).decode()}"
            alt = f"{one['image']}: the annotation and the prediction side by side"
            pictures.append(Picture(f"{one['image']}, {what} {one['score']:.2f}", source, alt))
    return pictures
