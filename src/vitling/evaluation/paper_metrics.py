"""The metrics of EsViT's Table 10 by their names there: scores [N, C] and labels in, one number that is to be high."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vitling.evaluation import metrics

Scorer = Callable[[Tensor, Tensor], float]

METRICS: dict[str, Scorer] = {
    "accuracy": metrics.top1,
    "mean per class": metrics.mean_per_class,
    "11-point mAP": metrics.eleven_point_map,
    "ROC-AUC": metrics.roc_auc,
    "mAP": metrics.mean_average_precision,
}


def all_metrics(scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Those that such labels have."""
    names = ["11-point mAP", "mAP"] if labels.ndim == 2 else ["accuracy", "mean per class"]
    if labels.ndim == 1 and scores.shape[1] == 2 and len(labels.unique()) == 2:
        names.append("ROC-AUC")
    return {name: METRICS[name](scores, labels) for name in names}
