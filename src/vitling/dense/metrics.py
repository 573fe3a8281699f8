"""Metrics of dense tasks: COCO's average precision, and intersection over union of semantic masks."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vitling.data.annotations.segments import import_pycocotools
from vitling.data.annotations.split import IGNORE, AnnotatedSplit
from vitling.dense.detections import Detections

Kind = Literal["box", "mask"]
COCO_KINDS = {"box": "bbox", "mask": "segm"}


@dataclass(frozen=True)
class AveragePrecision:
    """COCO's figures, 0 to 1; None if there are no instances to find (of that size or class)."""

    ap: float | None  # mean over the IoU thresholds 0.5, 0.55, ..., 0.95
    ap50: float | None
    ap75: float | None
    ap_small: float | None  # area below 32 x 32 pixels
    ap_medium: float | None  # below 96 x 96
    ap_large: float | None
    per_class: dict[str, float | None]


@dataclass(frozen=True)
class ClassOverlap:
    iou: float | None
    accuracy: float | None
    pixels: int  # in the annotated masks


@dataclass(frozen=True)
class MaskMetrics:
    """Figures of semantic masks, 0 to 1; None for classes that do not occur."""

    miou: float | None
    mean_accuracy: float | None
    pixel_accuracy: float | None
    per_class: dict[str, ClassOverlap]


def compute_ap(split: AnnotatedSplit, detections: Sequence[Detections]) -> dict[Kind, AveragePrecision]:
    """Evaluate detections, one entry per image of the split, with pycocotools; mask AP if both sides have masks."""
    instances = split.instances
    if instances is None:
        raise ValueError(f"{split.dataset.name} has no instances")
    if len(detections) != len(split):
        raise ValueError(f"detections of {len(detections)} images, but {len(split)} in {split.dataset.name}")
    kinds: list[Kind] = ["box"]
    if instances.segments is not None and _have_masks(detections):
        kinds.append("mask")
    truth = _index(split, _list_truth(split))
    return {
        kind: _evaluate(truth, _index(split, _list_detections(detections, kind)), kind, split.class_names)
        for kind in kinds
    }


def _have_masks(detections: Sequence[Detections]) -> bool:
    """Return whether there are masks; images without detections need none."""
    return any(found.masks is not None for found in detections) and all(
        found.masks is not None or not len(found) for found in detections
    )


def _list_truth(split: AnnotatedSplit) -> list[dict[str, Any]]:
    found = split.instances
    assert found is not None
    images = found.images
    sizes = split.sizes[images]
    corners = found.boxes.astype(np.float64) * sizes[:, [1, 0, 1, 0]]
    listed = []
    for k, (left, top, right, bottom) in enumerate(corners.tolist()):
        entry = {
            "id": k + 1,  # pycocotools takes 0 for no match
            "image_id": int(images[k]),
            "category_id": int(found.classes[k]),
            "bbox": [left, top, right - left, bottom - top],
            "area": float(found.areas[k]),
            "iscrowd": int(found.crowd[k]),
        }
        if found.segments is not None:
            entry["segmentation"] = found.segments[k]
        listed.append(entry)
    return listed


def _list_detections(detections: Sequence[Detections], kind: Kind) -> list[dict[str, Any]]:
    """List detections as COCO's results; those that are not finite are dropped."""
    listed: list[dict[str, Any]] = []
    for i, found in enumerate(detections):
        areas = import_pycocotools("mask").area(found.masks) if kind == "mask" and found.masks else None
        finite = np.isfinite(found.boxes).all(axis=1) & np.isfinite(found.scores)
        for k in np.flatnonzero(finite).tolist():
            left, top, right, bottom = (float(side) for side in found.boxes[k])
            entry = {
                "id": len(listed) + 1,
                "image_id": i,
                "category_id": int(found.classes[k]),
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top) if areas is None else float(areas[k]),
                "iscrowd": 0,
                "score": float(found.scores[k]),
            }
            if kind == "mask" and found.masks is not None:
                entry["segmentation"] = found.masks[k]
            listed.append(entry)
    return listed


def _index(split: AnnotatedSplit, annotations: list[dict[str, Any]]) -> Any:
    """Create the COCO object that pycocotools works with."""
    coco = import_pycocotools("coco").COCO()
    coco.dataset = {
        "images": [{"id": i, "height": h, "width": w} for i, (h, w) in enumerate(split.sizes.tolist())],
        "annotations": annotations,
        "categories": [{"id": c, "name": name} for c, name in enumerate(split.class_names)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
    return coco


def _evaluate(truth: Any, found: Any, kind: Kind, class_names: Sequence[str]) -> AveragePrecision:
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = import_pycocotools("cocoeval").COCOeval(truth, found, COCO_KINDS[kind])
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [thresholds, recalls, classes], all sizes
    per_class = {name: _average_valid(precision[:, :, c]) for c, name in enumerate(class_names)}
    figures = [None if value < 0 else float(value) for value in evaluation.stats]
    ap, ap50, ap75, small, medium, large = figures[:6]
    return AveragePrecision(ap, ap50, ap75, small, medium, large, per_class)


def _average_valid(precision: np.ndarray) -> float | None:
    """Average where pycocotools gives a precision; it marks what does not exist with -1."""
    valid = precision[precision > -1]
    return float(valid.mean()) if valid.size else None


@dataclass
class ConfusionMatrix:
    """Pixels by annotated class (rows) and predicted class (columns), accumulated over images."""

    classes: int
    counts: np.ndarray = field(init=False)  # int64 [K, K]

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.classes, self.classes), np.int64)

    def add(self, truth: np.ndarray, predicted: np.ndarray) -> None:
        """Count the pixels of an image, or of several, except those that are IGNORE in `truth`."""
        if truth.shape != predicted.shape:
            raise ValueError(f"masks of different shape: {truth.shape} and {predicted.shape}")
        used = truth != IGNORE
        cells = truth[used].astype(np.int64) * self.classes + predicted[used]
        self.counts += np.bincount(cells, minlength=self.classes**2).reshape(self.classes, self.classes)

    def summarise(self, class_names: Sequence[str]) -> MaskMetrics:
        """Compute the metrics. Means are over the classes that occur: in either mask for IoU, in truth for accuracy."""
        hits, annotated, predicted = self.counts.diagonal(), self.counts.sum(axis=1), self.counts.sum(axis=0)
        iou = _divide(hits, annotated + predicted - hits)
        accuracy = _divide(hits, annotated)
        return MaskMetrics(
            miou=_mean(iou),
            mean_accuracy=_mean(accuracy),
            pixel_accuracy=_divide(hits.sum(keepdims=True), annotated.sum(keepdims=True))[0],
            per_class={
                name: ClassOverlap(iou[c], accuracy[c], int(annotated[c])) for c, name in enumerate(class_names)
            },
        )


def _divide(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    return [p / w if w else None for p, w in zip(part.tolist(), whole.tolist())]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
