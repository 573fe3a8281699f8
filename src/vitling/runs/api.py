"""Return values of `vitling.train`, `detect`, `segment` and `load`: a result with its main figures, and a model."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitling.evaluation.bundle import find_bundle, load
from vitling.evaluation.config import Weights
from vitling.evaluation.intervals import wilson_interval
from vitling.evaluation.model import Model
from vitling.formatting import shorten_list
from vitling.loading import read_record
from vitling.metric_names import METRIC_NAMES
from vitling.notebook import CURVES, draw_curves
from vitling.records import RunResult
from vitling.runs.dense_bundle import find_dense, load_dense
from vitling.runs.dense_model import DenseModel
from vitling.runs.dense_use import evaluate_dense
from vitling.runs.evaluate import evaluate
from vitling.runs.report import FILE as REPORT
from vitling.runs.report_files import HEADLINES, read_curves
from vitling.settings.evaluation import EvaluationConfig
from vitling.settings.names import apply_overrides


class Figures(dict[str, Any]):
    """The metrics of one split, by name, as in JSON."""

    @property
    def metric(self) -> str | None:
        """Name of the main metric: top1, mean_average_precision, mean_iou or box_ap."""
        return next((key for key in HEADLINES if key in self), None)

    @property
    def score(self) -> float | None:
        """The main metric, from 0 to 1; None if it is undefined."""
        return None if self.metric is None else self[self.metric]

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy; None for several labels per image, detection and segmentation."""
        return self.get("top1")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of the accuracy; it takes the images as independent."""
        return None if self.accuracy is None else wilson_interval(self.accuracy, self["n"])

    def describe(self, split: str) -> str:
        if self.accuracy is None or self.interval is None:
            metric = METRIC_NAMES[self.metric or "mean_average_precision"]
            return f"{metric.display} {metric.format(self.score)} on {self['n']:,} {split} images"
        low, high = self.interval
        return (
            f"accuracy {self.accuracy:.1%} on {self['n']:,} {split} images "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f})"
        )


class Evaluation(Figures):
    """All metrics on one split of a dataset; keys as in the JSON of `vitling evaluate --out`."""

    def __repr__(self) -> str:
        return f"<Evaluation: {self.describe(self['split'])} of {self['data']}>"


class Result(dict[str, Any]):
    """The result of a run of `train`, `detect` or `segment`; keys as in result.json."""

    def __init__(self, values: dict[str, Any], run: str | os.PathLike[str]):
        super().__init__(values)
        self.run = Path(run)

    @property
    def split(self) -> str | None:
        """The split that the score is from: test, else val; None if nothing was evaluated."""
        return next((split for split in ("test", "val") if split in self.get("last", {})), None)

    @property
    def figures(self) -> Figures | None:
        """All metrics of the last epoch on that split."""
        return None if self.split is None else Figures(self["last"][self.split])

    @property
    def score(self) -> float | None:
        """Main metric of the last epoch: accuracy, mAP for several labels per image, mIoU, or AP of boxes."""
        return None if self.figures is None else self.figures.score

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy of the last epoch; None without a test or val split, and where `score` is another metric."""
        return None if self.figures is None else self.figures.accuracy

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of the accuracy."""
        return None if self.figures is None else self.figures.interval

    @property
    def report(self) -> Path | None:
        """Path of report.html; None if the run has none."""
        path = self.run / REPORT
        return path if path.exists() else None

    @property
    def model(self) -> TrainedModel | TrainedDenseModel:
        """The model of the last epoch, loaded from the run."""
        return load_model(self.run)

    def describe(self) -> str:
        return "nothing held out" if self.figures is None else self.figures.describe(self.split or "")

    def __repr__(self) -> str:
        images = f"{self.get('images', 0):,} images"
        return f"<Result of {self.run}: {self.get('backbone')}, {images}, {self.describe()}>"

    def _repr_html_(self) -> str:
        """Show the main figures, the curves and a link to the report in a notebook."""
        path = self.run / "metrics.jsonl"
        curves = {curve.name: list(zip(curve.epochs, curve.values)) for curve in read_curves("", path)}
        shown = {name: curves[name] for name in CURVES if name in curves}
        network = f"{self.get('backbone')} at {self.get('size')} px, {self.get('images', 0):,} training images"
        return f"<b>{escape(self.describe())}</b><br>{escape(network)}<br>{_link(self.report)}{draw_curves(shown)}"


class TrainedModel(Model):
    """A model that knows its folder, so that it can be evaluated as on the command line."""

    def __init__(self, model: Model, path: str | os.PathLike[str], weights: Weights):
        super().__init__(model.backbone, model.head, model.meta, model.device, model.trust)
        self.path, self.weights = Path(path), weights

    def evaluate(self, data: str | os.PathLike[str], **settings: Any) -> Evaluation:
        """Compute all metrics on labelled images, like `vitling evaluate`; settings are its flags (`split="val"`)."""
        config = EvaluationConfig(str(self.path), str(data), weights=self.weights, device=str(self.device))
        return Evaluation(evaluate(apply_overrides(config, settings)))

    def __repr__(self) -> str:
        classes = f"{len(self.class_names)} classes" if self.head is not None else "no head"
        return f"<Model of {self.path}: {self.backbone.name} at {self.meta.size} px, {classes}>"

    def _repr_html_(self) -> str:
        return _render_model(self)


def _link(report: Path | None) -> str:
    return "" if report is None else f'<a href="{escape(quote(str(report)))}" target="_blank">{escape(str(report))}</a>'


class TrainedDenseModel(DenseModel):
    """A detector or segmentation network that knows its folder, so that it can be evaluated as on the command line."""

    def __init__(self, model: DenseModel, path: str | os.PathLike[str], weights: Weights):
        super().__init__(model.objective, model.meta)
        self.path, self.weights = Path(path), weights

    def evaluate(self, data: str | os.PathLike[str], **settings: Any) -> dict[str, Any]:
        """Compute all metrics on annotated images, like `vitling evaluate`; settings are its flags (`split="val"`)."""
        config = EvaluationConfig(str(self.path), str(data), weights=self.weights, device=str(self.device))
        return evaluate_dense(apply_overrides(config, settings), find_bundle(self.path, self.weights))

    def __repr__(self) -> str:
        meta = self.meta
        return f"<{meta.model} of {self.path}: {self.objective.backbone.name}, {len(meta.class_names)} classes>"

    def _repr_html_(self) -> str:
        return _render_model(self)


def _render_model(model: TrainedModel | TrainedDenseModel) -> str:
    """Show a model with the result of its run, if it is in one."""
    path = model.path / "result.json"
    result = Result(read_record(path, RunResult), model.path)._repr_html_() if path.exists() else ""
    names = shorten_list(model.class_names, 20)
    return f"<p>{escape(repr(model)[1:-1])}<br>{escape(names)}</p>{result}"


def load_model(
    path: str | os.PathLike[str], weights: Weights = "last", device: str = "cpu"
) -> TrainedModel | TrainedDenseModel:
    if (folder := find_dense(path, weights)) is not None:
        return TrainedDenseModel(load_dense(folder, device), path, weights)
    return TrainedModel(load(path, weights, device), path, weights)
