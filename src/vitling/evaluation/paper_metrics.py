"""The metrics of EsViT's Table 10 by their names there: scores [N, C] and labels in, one number that is to be high."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation import metrics

Scorer = Callable[[Tensor, Tensor], float]
RECALLS = 11  # 0, 0.1, ..., 1


def eleven_point_map(scores: Tensor, labels: Tensor) -> float:
    """VOC 2007's mean average precision: of each class the mean, over eleven recalls, of the best precision at that
    recall or a higher one. Classes without a positive image are left out; equal scores share one threshold."""
    metrics.check(scores, labels)
    found = [_eleven_points(scores[:, c].double(), labels[:, c]) for c in range(labels.shape[1]) if labels[:, c].any()]
    if not found:
        raise UserError("No image has any label, so there is no average precision.")
    return float(torch.stack(found).mean())


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Of two classes: how often an image of the second has more of its score than one of the first; equal ones count
    half."""
    metrics.check(scores, labels)
    if labels.ndim != 1 or scores.shape[1] != 2:
        raise UserError("The area under the ROC curve is that of two classes.")
    margin = (scores[:, 1] - scores[:, 0]).double()
    _, place, count = margin.unique(return_inverse=True, return_counts=True)
    ends = count.cumsum(0).double()
    rank = (ends - (count - 1) / 2)[place]  # mean rank, from 1, of all that are equal
    positive = labels == 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        raise UserError("The area under the ROC curve needs images of both classes.")
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * m))


METRICS: dict[str, Scorer] = {
    "accuracy": metrics.top1,
    "mean per class": metrics.mean_per_class,
    "11-point mAP": eleven_point_map,
    "ROC-AUC": roc_auc,
    "mAP": metrics.mean_average_precision,
}


def all_metrics(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Those that such labels have."""
    names = ["11-point mAP", "mAP"] if labels.ndim == 2 else ["accuracy", "mean per class"]
    if labels.ndim == 1 and scores.shape[1] == 2 and len(labels.unique()) == 2:
        names.append("ROC-AUC")
    return {name: METRICS[name](scores, labels) for name in names}


def _eleven_points(scores: Tensor, positive: Tensor) -> Tensor:
    order = scores.argsort(descending=True)
    scores, hits = scores[order], positive[order].double().cumsum(0)
    ends = torch.cat([scores[1:] != scores[:-1], torch.ones_like(positive[:1])])
    hits, seen = hits[ends], torch.arange(1, len(scores) + 1, device=scores.device)[ends]
    precision = (hits / seen).flip(0).cummax(0).values.flip(0)  # the best from here on
    tenths = torch.arange(RECALLS, device=scores.device)
    first = torch.searchsorted(hits * (RECALLS - 1), tenths * hits[-1])  # in whole numbers: 0.3 is not 3 / 10
    return precision[first].mean()
