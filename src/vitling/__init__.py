"""Train vision transformers on small image folders, from scratch.

    result = vitling.train("images/", out="runs/first")
    result.accuracy, result.interval, result.run, result.report, result.model
    model = vitling.load("runs/first")
    model.predict("x.jpg")
    model.evaluate("new-images/")

`vitling.detect` and `vitling.segment` work alike: `result.score` is the AP of boxes or the mIoU.
In Jupyter, all three show their progress and curves, and the result its figures.

Importing this package does not import torch; the first call does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from vitling.version import __version__

if TYPE_CHECKING:
    from vitling.runs.api import Result, TrainedDenseModel, TrainedModel

__all__ = ["__version__", "detect", "load", "segment", "train"]


def train(source: str, out: str, **settings: Any) -> Result:
    """Train like `vitling train`. Settings are its flags, nested ones by dotted name: `**{"optim.lr": 1e-3}`."""
    from vitling.runs.train import train as run
    from vitling.settings.config import TrainConfig

    return _run(run, TrainConfig, source, out, settings)


def detect(source: str, out: str, **settings: Any) -> Result:
    """Train a detector like `vitling detect`; settings are its flags."""
    from vitling.runs.dense import train_dense
    from vitling.settings.dense import DetectConfig

    return _run(train_dense, DetectConfig, source, out, settings)


def segment(source: str, out: str, **settings: Any) -> Result:
    """Train a segmentation network like `vitling segment`; settings are its flags."""
    from vitling.runs.dense import train_dense
    from vitling.settings.dense import SegmentConfig

    return _run(train_dense, SegmentConfig, source, out, settings)


def load(path: str, weights: Literal["last", "best"] = "last", device: str = "cpu") -> TrainedModel | TrainedDenseModel:
    """Load the model of a run or a model folder, ready for `predict` and `evaluate`, and `embed` for classifiers."""
    from vitling.runs.api import load_model

    _register_readers()
    return load_model(path, weights, device)


def _run(command: Callable[[Any], dict[str, Any]], kind: type, source: str, out: str, settings: Any) -> Result:
    from vitling.runs.api import Result
    from vitling.settings.names import apply_overrides

    _register_readers()
    return Result(command(apply_overrides(kind(source=str(source), out=str(out)), settings)), out)


def _register_readers() -> None:
    """Let sources such as flowers102:DIR name the papers' datasets, as on the command line."""
    from vitling.papers.datasets import register_readers

    register_readers()
