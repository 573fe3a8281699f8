"""Evaluate a detector or a segmentation network on an annotated split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitling.data.annotations.split import AnnotatedSplit
from vitling.data.store import Store
from vitling.dense.detections import Detections
from vitling.dense.metrics import ConfusionMatrix, compute_ap
from vitling.objectives.moments import Moment
from vitling.runs.dense_model import DenseMeta, DenseModel, Prediction

MIN_SCORE, MIN_OVERLAP = 0.5, 0.5  # of a detection that counts, in the list of the worst images
WORST = 8  # images that are kept with their predictions
_NOTHING = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))
PRIMARY = {"segment": "mean_iou", "detect": "box_ap"}  # the metric that chooses the best epoch


@dataclass
class SplitScores:
    """Metrics of one split, and the images that were predicted worst."""

    images: int
    metrics: dict[str, float | None]
    per_class: list[dict[str, Any]]
    worst: list[tuple[float, int, Prediction]] = field(default_factory=list)  # score, id, prediction; the worst first

    @property
    def short(self) -> dict[str, Any]:
        """Return the figures for result.json."""
        return {"n": self.images, **{key: value for key, value in self.metrics.items() if value is not None}}

    @property
    def full(self) -> dict[str, Any]:
        """Return the figures for evaluation.json."""
        return {**self.short, "per_class": self.per_class}


def evaluate_store(
    model: DenseModel, store: Store, split: AnnotatedSplit, on_progress: Callable[[int], Any] = lambda done: None
) -> SplitScores:
    """Predict all images of a store and compare with its annotations."""
    evaluate = _evaluate_detections if model.meta.task == "detect" else _evaluate_maps
    return evaluate(model, store, split, on_progress)


@dataclass
class ScoreWatcher:
    """Watcher of training: val/mean_iou, or val/box_ap and val/mask_ap."""

    meta: DenseMeta
    store: Store
    split: AnnotatedSplit
    every: int = 1

    def __call__(self, moment: Moment) -> dict[str, float]:
        scores = evaluate_store(DenseModel(moment.objective, self.meta), self.store, self.split)  # type: ignore[arg-type]
        watched = (PRIMARY[self.meta.task], "mask_ap")
        return {f"val/{key}": value for key in watched if (value := scores.metrics.get(key)) is not None}

    @property
    def metric(self) -> str:
        return f"val/{PRIMARY[self.meta.task]}"


def _evaluate_maps(
    model: DenseModel, store: Store, split: AnnotatedSplit, on_progress: Callable[[int], Any]
) -> SplitScores:
    assert split.read_mask is not None
    total, worst = ConfusionMatrix(len(split.class_names)), _Worst()
    for done, (i, found) in enumerate(model.predict_store(store), 1):
        assert isinstance(found, np.ndarray)
        own = ConfusionMatrix(total.classes)
        own.add(split.read_mask(i), found)
        total.counts += own.counts
        worst.add(own.summarise(split.class_names).miou, i, found)
        on_progress(done)
    summary = total.summarise(split.class_names)
    metrics = {
        "mean_iou": summary.miou,
        "mean_class_accuracy": summary.mean_accuracy,
        "pixel_accuracy": summary.pixel_accuracy,
    }
    rows = [
        {"class": name, "n": one.pixels, "iou": one.iou, "accuracy": one.accuracy}
        for name, one in summary.per_class.items()
    ]
    return SplitScores(len(store), metrics, rows, worst.images)


def _evaluate_detections(
    model: DenseModel, store: Store, split: AnnotatedSplit, on_progress: Callable[[int], Any]
) -> SplitScores:
    assert split.instances is not None
    detections, worst = [_NOTHING] * len(split), _Worst()
    for done, (i, found) in enumerate(model.predict_store(store), 1):
        assert isinstance(found, Detections)
        detections[i] = found
        worst.add(score_image(get_truth(split, i), found), i, found)
        on_progress(done)
    found_ap = compute_ap(split, detections)
    metrics: dict[str, float | None] = {}
    for kind, ap in found_ap.items():
        for suffix in ("", "50", "75", "_small", "_medium", "_large"):
            metrics[f"{kind}_ap{suffix}"] = getattr(ap, f"ap{suffix}")
    counts = np.bincount(split.instances.classes, minlength=len(split.class_names))
    rows = [
        {"class": name, "n": int(counts[c]), **{f"{kind}_ap": ap.per_class[name] for kind, ap in found_ap.items()}}
        for c, name in enumerate(split.class_names)
    ]
    return SplitScores(len(store), metrics, rows, worst.images)


class _Worst:
    """The images with the lowest scores so far."""

    def __init__(self) -> None:
        self.images: list[tuple[float, int, Prediction]] = []

    def add(self, score: float | None, image: int, found: Prediction) -> None:
        if score is not None:
            self.images = sorted([*self.images, (score, image, found)], key=lambda one: one[:2])[:WORST]


def get_truth(split: AnnotatedSplit, i: int) -> Detections:
    """Return the annotated instances of an image as certain detections, without crowds."""
    assert split.instances is not None
    own = split.instances.take([i])
    kept = np.flatnonzero(~own.crowd)
    height, width = split.sizes[i]
    boxes = own.boxes[kept] * np.array([width, height, width, height])
    masks = None if own.segments is None else [own.segments[k] for k in kept]
    return Detections(boxes, np.ones(len(kept)), own.classes[kept], masks)


def score_image(truth: Detections, found: Detections) -> float | None:
    """Return the F1 score of the boxes of one image at a score and an overlap of 0.5; None if it has no instances."""
    if not len(truth):
        return None
    sure = [int(k) for k in np.argsort(-found.scores) if found.scores[k] >= MIN_SCORE]
    free, hits = set(range(len(truth))), 0
    for k in sure:
        same = [t for t in free if truth.classes[t] == found.classes[k]]
        overlaps = {t: overlap(found.boxes[k], truth.boxes[t]) for t in same}
        if overlaps and overlaps[best := max(overlaps, key=overlaps.__getitem__)] >= MIN_OVERLAP:
            free.remove(best)
            hits += 1
    return 2 * hits / (len(truth) + len(sure))


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the intersection over union of two boxes."""
    inner = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(np.maximum(inner, 0)))
    both = sum(float(np.prod(np.maximum(box[2:] - box[:2], 0))) for box in (one, other))
    return shared / max(both - shared, 1e-9)
