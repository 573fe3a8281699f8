"""Names of the metrics: one table for result files, the command line and everything that is printed. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MetricFlag = Literal["top1", "mean-per-class", "map", "map-11-point", "roc-auc"]


@dataclass(frozen=True)
class MetricName:
    key: str  # in result files
    display: str
    flag: MetricFlag | None = None  # value of --metric; None if a probe cannot be chosen by it
    paper: str = ""  # in the papers' tables and in suite.json; empty if no table reports it
    short: str = ""  # in tables that have to fit in 80 columns; empty: `display`
    unit: Literal["fraction", "nats"] = "fraction"  # a fraction is printed in percent

    def format(self, value: float | None) -> str:
        if value is None:  # a mAP without positive images
            return "undefined"
        return f"{value:.2%}" if self.unit == "fraction" else f"{value:.4f}"


_AP_KINDS = (
    ("", "", ""),
    ("50", "50", "50"),
    ("75", "75", "75"),
    ("_small", ", small objects", "s"),
    ("_medium", ", medium objects", "m"),
    ("_large", ", large objects", "l"),
)
METRIC_NAMES = {
    metric.key: metric
    for metric in (
        MetricName("top1", "top-1", flag="top1", paper="accuracy"),
        MetricName("top5", "top-5"),
        MetricName("mean_per_class", "mean per class", "mean-per-class", "mean per class", short="per class"),
        MetricName("mean_average_precision", "mAP", flag="map", paper="mAP"),
        MetricName("eleven_point_map", "mAP, 11 points", flag="map-11-point", paper="11-point mAP"),
        MetricName("roc_auc", "ROC-AUC", flag="roc-auc", paper="ROC-AUC"),
        MetricName("log_loss", "log loss", unit="nats"),
        MetricName("calibration_error", "calibration error", short="calib."),
        MetricName("mean_iou", "mIoU"),
        MetricName("mean_class_accuracy", "mean class accuracy", short="mAcc"),
        MetricName("pixel_accuracy", "pixel accuracy", short="pixels"),
        *(
            MetricName(f"{kind}_ap{suffix}", f"{kind} AP{words}", short=f"{kind} AP{short}")
            for kind in ("box", "mask")
            for suffix, words, short in _AP_KINDS
        ),
    )
}
DENSE_METRICS = (
    *("mean_iou", "mean_class_accuracy", "pixel_accuracy"),
    *(f"{kind}_ap{suffix}" for kind in ("box", "mask") for suffix in ("", "50", "75")),
)  # those that tables show
BY_FLAG: dict[str, MetricName] = {metric.flag: metric for metric in METRIC_NAMES.values() if metric.flag}
BY_PAPER = {metric.paper: metric for metric in METRIC_NAMES.values() if metric.paper}


def flag_of_paper_metric(name: str) -> MetricFlag:
    """Return the value of --metric for a metric as the papers name it."""
    flag = BY_PAPER[name].flag
    assert flag is not None
    return flag


def primary_metric(multi_label: bool) -> str:
    """Return the key of the metric that runs are chosen and compared by."""
    return "mean_average_precision" if multi_label else "top1"
