"""How good the answers are: logits [N, C] and labels (int [N], or bool [N, C] for several) in, numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation.config import Metric
from vitling.metric_names import MetricFlag

BINS = 15


def top1(logits: Tensor, labels: Tensor) -> float:
    """Of equal logits the first counts, as everywhere else here."""
    check(logits, labels)
    return _mean(logits.argmax(dim=1) == labels)


def topk(logits: Tensor, labels: Tensor, k: int) -> float:
    """The share of images whose class is among the k best; `k` is capped at the number of classes."""
    check(logits, labels)
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return _mean((best == labels[:, None]).any(dim=1))


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Counts [true class, answered class]."""
    check(logits, labels)
    classes = logits.shape[1]
    return torch.bincount(labels * classes + logits.argmax(dim=1), minlength=classes**2).view(classes, classes)


def mean_per_class(logits: Tensor, labels: Tensor) -> float:
    """The mean recall over the classes that have images; `summarise` names those that have none."""
    counts = confusion(logits, labels)
    return _mean(_ratio(counts.diagonal(), counts.sum(dim=1))[counts.sum(dim=1) > 0])


def log_loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross entropy in nats; for several labels the mean binary one over images and classes."""
    check(logits, labels)
    if labels.ndim == 2:
        return float(F.binary_cross_entropy_with_logits(logits.double(), labels.double()))
    return float(F.cross_entropy(logits.double(), labels))


def calibration_error(logits: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy - confidence| over bins of equal width, weighted by their images.

    With several labels an image, every (image, class) answer counts.
    """
    check(logits, labels)
    if labels.ndim == 2:
        confidence, right = logits.double().sigmoid().flatten(), labels.flatten()
    else:
        confidence, answer = logits.double().softmax(dim=1).max(dim=1)
        right = answer == labels
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64, device=logits.device)
    gaps.index_add_(0, bin_of, right.double() - confidence)
    return float(gaps.abs().sum() / len(confidence))


def average_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """Non-interpolated average precision of each class [C]; NaN for a class without a positive image."""
    check(scores, labels)
    return torch.stack([_average_precision(scores[:, c].double(), labels[:, c]) for c in range(scores.shape[1])])


def mean_average_precision(scores: Tensor, labels: Tensor) -> float:
    """The mean over the classes that have a positive image; scores may be logits or probabilities."""
    values = average_precisions(scores, labels)
    if values.isnan().all():
        raise UserError("No image has any label, so there is no average precision.")
    return float(values.nanmean())


def eleven_point_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """Interpolated average precision of each class [C] as PASCAL VOC 2007 has it (Everingham et al. 2010, Eq. 1): the
    mean over the recalls 0, 0.1, ..., 1 of the best precision at that recall or a higher one. NaN for a class without a
    positive image."""
    check(scores, labels)
    return torch.stack([_eleven_points(scores[:, c].double(), labels[:, c]) for c in range(scores.shape[1])])


def eleven_point_map(scores: Tensor, labels: Tensor) -> float:
    """The mean over the classes that have a positive image."""
    values = eleven_point_precisions(scores, labels)
    if values.isnan().all():
        raise UserError("No image has any label, so there is no average precision.")
    return float(values.nanmean())


def roc_aucs(scores: Tensor, labels: Tensor) -> Tensor:
    """Area under the ROC curve of each class against the others [C]: how often an image of the class has a higher score
    than one of another, half of the ties counted. NaN for a class that no image has, or all."""
    check(scores, labels)
    several = labels.ndim == 2
    columns = (scores.double() if several else _log_odds(scores.double())).T.contiguous()
    return torch.stack([_roc_auc(column, labels[:, c] if several else labels == c) for c, column in enumerate(columns)])


def _log_odds(logits: Tensor) -> Tensor:
    """Of each class against all others [N, C]: in the order of its probability, which is 1 for all that are sure."""
    logs = logits.log_softmax(dim=1)
    odds = logs - torch.log1p(-logs.exp())
    best, first = logits.max(dim=1, keepdim=True)  # the one whose probability may be 1
    others = logits.scatter(1, first, -torch.inf).logsumexp(dim=1, keepdim=True)
    return odds.scatter(1, first, best - others)


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """The mean over the classes that some images have and some have not; two classes have the same."""
    values = roc_aucs(scores, labels)
    if values.isnan().all():
        raise UserError("ROC-AUC needs images of a class and images of others; all are of one class.")
    return float(values.nanmean())


def per_class(logits: Tensor, labels: Tensor, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """n, recall, precision and f1 of each class; recall is None for a class without images, precision for one
    that is never answered."""
    if labels.ndim == 2:
        check(logits, labels)
        answered = logits > 0
        hits, n, given = (t.sum(dim=0) for t in (answered & labels, labels, answered))
    else:
        counts = confusion(logits, labels)
        hits, n, given = counts.diagonal(), counts.sum(dim=1), counts.sum(dim=0)
    columns = zip(class_names, n.tolist(), _ratio(hits, n), _ratio(hits, given), _ratio(2 * hits, n + given))
    return [
        {"class": name, "n": count, "recall": _or_none(r), "precision": _or_none(p), "f1": _or_none(f)}
        for name, count, r, p, f in columns
    ]


def summarise(logits: Tensor, labels: Tensor, class_names: Sequence[str], temperature: float = 1.0) -> dict[str, Any]:
    """Everything that a report says of a split, ready for JSON. Only log_loss, calibration_error and, of
    three classes or more, roc_auc depend on the temperature."""
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
        "left_out": [row["class"] for row in rows if not row["n"]],  # no images, so not in any mean over classes
    }
    if labels.ndim == 2:
        precisions = average_precisions(logits, labels)
        for row, value in zip(rows, precisions):
            row["average_precision"] = _or_none(value)
        return {
            "task": "multi",
            "mean_average_precision": mean_average_precision(logits, labels),
            "eleven_point_map": eleven_point_map(logits, labels),
            "roc_auc": _or_none(roc_aucs(logits, labels).nanmean()),
            **shared,
        }
    return {
        "task": "single",
        "top1": top1(logits, labels),
        "top5": topk(logits, labels, 5),
        "mean_per_class": mean_per_class(logits, labels),
        "roc_auc": _or_none(roc_aucs(scaled, labels).nanmean()),
        **shared,
        "confusion": confusion(logits, labels).tolist(),
    }


def check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or not len(logits) or len(logits) != len(labels):
        raise UserError(f"Logits {list(logits.shape)} and labels {list(labels.shape)} do not belong together.")
    if not logits.isfinite().all():
        bad = int((~logits.isfinite()).any(dim=1).sum())
        raise UserError(f"The model's output is not finite for {bad} of {len(logits)} images. Did training diverge?")
    if labels.ndim == 2:
        if labels.dtype != torch.bool or labels.shape != logits.shape:
            raise UserError(f"Several labels an image are bool {list(logits.shape)}, not {list(labels.shape)}.")
    elif labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise UserError(f"Labels lie in {int(labels.min())}..{int(labels.max())}, classes are {logits.shape[1]}.")


def _average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    """Sum over thresholds of (recall gained) x precision."""
    hits, answered = _by_threshold(scores, positive)
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return (gained * hits / answered).sum() / hits[-1]


def _eleven_points(scores: Tensor, positive: Tensor) -> Tensor:
    hits, answered = _by_threshold(scores, positive)
    best = (hits / answered).flip(0).cummax(0).values.flip(0)  # at this recall or a higher one
    wanted = torch.arange(11, device=hits.device) * hits[-1]
    first = torch.searchsorted(10 * hits, wanted)  # whole numbers: a recall of 3 in 10 is not below 0.3
    return best[first].mean() if hits[-1] else hits.new_tensor(torch.nan)


def _by_threshold(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Positives among the answered, and the answered, at every threshold; equal scores share one."""
    order = scores.argsort(descending=True)
    scores, hits = scores[order], positive[order].double().cumsum(0)
    ends = torch.cat([scores[1:] != scores[:-1], torch.ones_like(positive[:1])])
    return hits[ends], torch.arange(1, len(scores) + 1, device=scores.device)[ends]


def _roc_auc(scores: Tensor, positive: Tensor) -> Tensor:
    """Each of the others is looked up among the positives: only these, the fewer, are sorted. NaN where either is
    lacking."""
    ranked, others = scores[positive].sort().values, scores[~positive]
    lower, not_higher = (torch.searchsorted(ranked, others, right=right) for right in (False, True))
    return 1 - (lower + not_higher).double().mean() / (2 * len(ranked))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part.double() / whole.double()  # 0/0 is NaN: there is nothing to say


def _or_none(value: Tensor) -> float | None:
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


def resolve_metric(name: Metric, several: bool) -> MetricFlag:
    """Replace auto by top1, or by map for several labels an image; raise UserError if the labels rule out `name`."""
    if name == "auto":
        return "map" if several else "top1"
    fitting = [key for key in METRICS if key == "roc-auc" or key.startswith("map") == several]
    if name not in fitting:
        raise UserError(
            f"--metric {name} does not suit {'several labels' if several else 'one class'} an image; these do: "
            f"{', '.join(fitting)}."
        )
    return name
