"""Metrics of logits [N, C] against labels: int [N], or bool [N, C] for several labels per image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.config import Metric
from vitling.evaluation.intervals import wilson_interval
from vitling.metric_names import MetricFlag

BINS = 15  # of equal width, in the calibration error
MAX_CONFUSION = 2_000  # classes of a confusion matrix that is kept: 4 million numbers, 12 MB of JSON


def top1(logits: Tensor, labels: Tensor) -> float:
    """Compute the fraction of correct predictions; on ties, the first class is predicted."""
    check(logits, labels)
    return _mean(logits.argmax(dim=1) == labels)


def topk(logits: Tensor, labels: Tensor, k: int) -> float:
    """Compute the fraction of images whose class is among the k best; `k` is capped at the number of classes."""
    check(logits, labels)
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return _mean((best == labels[:, None]).any(dim=1))


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Count images by [true class, predicted class]."""
    check(logits, labels)
    classes = logits.shape[1]
    return torch.bincount(labels * classes + logits.argmax(dim=1), minlength=classes**2).view(classes, classes)


def mean_per_class(logits: Tensor, labels: Tensor) -> float:
    """Average the recall over the classes that have images; `summarise` lists those that have none."""
    hits, n, _ = _count_by_class(logits, labels)
    return _mean(_ratio(hits, n)[n > 0])


def log_loss(logits: Tensor, labels: Tensor) -> float:
    """Compute the mean cross entropy in nats; for several labels the mean binary one over images and classes."""
    check(logits, labels)
    if labels.ndim == 2:
        return float(F.binary_cross_entropy_with_logits(logits.double(), labels.double()))
    return float(F.cross_entropy(logits.double(), labels))


def calibration_error(logits: Tensor, labels: Tensor) -> float:
    """Compute the expected calibration error: |accuracy - confidence| per bin of equal width, weighted by its images.

    With several labels per image, every (image, class) pair counts.
    """
    check(logits, labels)
    confidence, correct, bin_of = bin_confidence(logits, labels)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=logits.device)
    gaps.index_add_(0, bin_of, correct.double() - confidence)
    return float(gaps.abs().sum() / len(confidence))


def bin_confidence(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute confidence, correctness and the bin, 0 to BINS - 1, of each prediction."""
    if labels.ndim == 2:
        confidence, correct = logits.double().sigmoid().flatten(), labels.flatten()
    else:
        confidence, predicted = logits.double().softmax(dim=1).max(dim=1)
        correct = predicted == labels
    return confidence, correct, (confidence * BINS).ceil().long().clamp(1, BINS) - 1


def average_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the non-interpolated average precision of each class [C]; NaN for a class without a positive image."""
    check(scores, labels)
    return torch.stack([_average_precision(scores[:, c].double(), labels[:, c]) for c in range(scores.shape[1])])


def mean_average_precision(scores: Tensor, labels: Tensor) -> float:
    """Average `average_precisions` over the classes that have a positive image."""
    return _mean_precision(average_precisions(scores, labels))


def eleven_point_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the interpolated average precision of each class [C] (PASCAL VOC 2007, Everingham et al. 2010, Eq. 1).

    It is the mean over the recalls 0, 0.1, ..., 1 of the best precision at that recall or a higher one. NaN for a class
    without a positive image.
    """
    check(scores, labels)
    return torch.stack([_eleven_points(scores[:, c].double(), labels[:, c]) for c in range(scores.shape[1])])


def eleven_point_map(scores: Tensor, labels: Tensor) -> float:
    """Average `eleven_point_precisions` over the classes that have a positive image."""
    return _mean_precision(eleven_point_precisions(scores, labels))


def _mean_precision(precisions: Tensor) -> float:
    if precisions.isnan().all():
        raise UserError("No image has a label, so average precision is undefined.")
    return float(precisions.nanmean())


def roc_aucs(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the area under the ROC curve of each class against the others [C].

    It is the probability that an image of the class scores higher than an image of another class; ties count half.
    NaN for a class that no image has, or that all have.
    """
    check(scores, labels)
    multi_label = labels.ndim == 2
    columns = (scores.double() if multi_label else _log_odds(scores.double())).T.contiguous()
    positives = labels.T if multi_label else labels == torch.arange(len(columns), device=labels.device)[:, None]
    return torch.stack([_roc_auc(column, positive) for column, positive in zip(columns, positives)])


def _log_odds(logits: Tensor) -> Tensor:
    """Compute the log odds of each class against all others [N, C].

    They rank like the probabilities, but stay distinct where probabilities round to 1.
    """
    logs = logits.log_softmax(dim=1)
    odds = logs - torch.log1p(-logs.exp())
    best, first = logits.max(dim=1, keepdim=True)  # the class whose probability may round to 1
    others = logits.scatter(1, first, -torch.inf).logsumexp(dim=1, keepdim=True)
    return odds.scatter(1, first, best - others)


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Average `roc_aucs` over the classes that some images have and some do not."""
    values = roc_aucs(scores, labels)
    if values.isnan().all():
        raise UserError("All images are of one class, so ROC-AUC is undefined.")
    return float(values.nanmean())


def per_class(logits: Tensor, labels: Tensor, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Compute n, recall, precision and f1 of each class.

    Recall is None for a class without images, precision for a class that is never predicted.
    """
    hits, n, predictions = _count_by_class(logits, labels)
    ratios = _ratio(hits, n), _ratio(hits, predictions), _ratio(2 * hits, n + predictions)
    return [
        {"class": name, "n": count, "recall": _none_if_nan(r), "precision": _none_if_nan(p), "f1": _none_if_nan(f)}
        for name, count, r, p, f in zip(class_names, n.tolist(), *ratios)
    ]


def _count_by_class(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count the images of each class that are predicted as it, all images of it, and all predictions of it."""
    check(logits, labels)
    if labels.ndim == 2:
        predicted = logits > 0
        return (predicted & labels).sum(dim=0), labels.sum(dim=0), predicted.sum(dim=0)
    predictions, classes = logits.argmax(dim=1), logits.shape[1]
    hits, n, predicted = (t.bincount(minlength=classes) for t in (labels[labels == predictions], labels, predictions))
    return hits, n, predicted


def summarise(logits: Tensor, labels: Tensor, class_names: Sequence[str], temperature: float = 1.0) -> dict[str, Any]:
    """Compute all metrics of a split, ready for JSON, without the confusion matrix if there are very many classes.

    Only log_loss, calibration_error and, with three classes or more, roc_auc depend on the temperature.
    """
    check(logits, labels)
    if len(class_names) != logits.shape[1]:
        raise UserError(f"{len(class_names)} class names for {logits.shape[1]} classes.")
    scaled = logits / temperature
    rows = per_class(logits, labels, class_names)
    shared = {
        "n": len(labels),
        "log_loss": log_loss(scaled, labels),
        "calibration_error": calibration_error(scaled, labels),
        "temperature": temperature,
        "per_class": rows,
        "left_out": [row["class"] for row in rows if not row["n"]],  # without images; means over classes skip them
    }
    if labels.ndim == 2:
        precisions = average_precisions(logits, labels)
        for row, value in zip(rows, precisions):
            row["average_precision"] = _none_if_nan(value)
        return {
            "task": "multi",
            "mean_average_precision": _mean_precision(precisions),
            "eleven_point_map": eleven_point_map(logits, labels),
            "roc_auc": _none_if_nan(roc_aucs(logits, labels).nanmean()),
            **shared,
        }
    accuracy = top1(logits, labels)
    return {
        "task": "single",
        "top1": accuracy,
        "top1_interval": list(wilson_interval(accuracy, len(labels))),
        "top5": topk(logits, labels, 5),
        "mean_per_class": mean_per_class(logits, labels),
        "roc_auc": _none_if_nan(roc_aucs(scaled, labels).nanmean()),
        **shared,
        **({"confusion": confusion(logits, labels).tolist()} if len(class_names) <= MAX_CONFUSION else {}),
    }


def check(logits: Tensor, labels: Tensor) -> None:
    """Raise UserError if the shapes do not match or a logit is not finite."""
    if logits.ndim != 2 or not len(logits) or len(logits) != len(labels):
        raise UserError(f"Logits {list(logits.shape)} and labels {list(labels.shape)} do not match.")
    check_finite(logits, "The model's output is")
    if labels.ndim == 2:
        if labels.dtype != torch.bool or labels.shape != logits.shape:
            raise UserError(
                f"Labels of several classes must be bool {list(logits.shape)}, not {labels.dtype} {list(labels.shape)}."
            )
    elif labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise UserError(
            f"Labels are {int(labels.min())} to {int(labels.max())}, but there are {logits.shape[1]} classes."
        )


def check_finite(rows: Tensor, what: str) -> None:
    """Raise UserError if a row, that of an image, is not finite; `what` begins the message."""
    if bad := int((~rows.isfinite()).any(dim=1).sum()):
        raise UserError(f"{what} not finite for {bad} of {len(rows)} images. Did training diverge?")


def _average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """Sum (recall gained) x precision over the thresholds."""
    hits, predicted = _count_by_threshold(scores, positive)
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return (gained * hits / predicted).sum() / hits[-1]


def _eleven_points(scores: Tensor, positive: Tensor) -> Tensor:
    hits, predicted = _count_by_threshold(scores, positive)
    best = (hits / predicted).flip(0).cummax(0).values.flip(0)  # at this recall or a higher one
    wanted = torch.arange(11, device=hits.device) * hits[-1]
    first = torch.searchsorted(10 * hits, wanted)  # in whole numbers: 3 of 10 is not below a recall of 0.3
    return best[first].mean() if hits[-1] else hits.new_tensor(torch.nan)


def _count_by_threshold(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Count true and predicted positives at every threshold; equal scores share one."""
    order = scores.argsort(descending=True)
    scores, hits = scores[order], positive[order].double().cumsum(0)
    ends = torch.cat([scores[1:] != scores[:-1], torch.ones_like(positive[:1])])
    return hits[ends], torch.arange(1, len(scores) + 1, device=scores.device)[ends]


def _roc_auc(scores: Tensor, positive: Tensor) -> Tensor:
    """Look up each negative among the sorted positives, which are usually fewer. NaN without either of them."""
    ranked, others = scores[positive].sort().values, scores[~positive]
    lower, not_higher = (torch.searchsorted(ranked, others, right=right) for right in (False, True))
    return 1 - (lower + not_higher).double().mean() / (2 * len(ranked))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part.double() / whole.double()  # 0 / 0 is NaN: undefined


def _none_if_nan(value: Tensor) -> float | None:
    return None if value.isnan() else float(value)


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


METRICS: dict[MetricFlag, Callable[[Tensor, Tensor], float]] = {
    "top1": top1,
    "mean-per-class": mean_per_class,
    "map": mean_average_precision,
    "map-11-point": eleven_point_map,
    "roc-auc": roc_auc,
}


def resolve_metric(name: Metric, multi_label: bool) -> MetricFlag:
    """Replace auto by top1, or by map for several labels per image; raise UserError if the labels rule out `name`."""
    if name == "auto":
        return "map" if multi_label else "top1"
    allowed = [key for key in METRICS if key == "roc-auc" or key.startswith("map") == multi_label]
    if name not in allowed:
        labels = "several labels" if multi_label else "one class"
        raise UserError(f"--metric {name} does not work with {labels} per image; use one of {', '.join(allowed)}.")
    return name
