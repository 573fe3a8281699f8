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

from typing import TYPE_CHECKING, Any, Literal

from vitling.version import __version__

if TYPE_CHECKING:
    from vitling.runs.api import Result, TrainedDenseModel, TrainedModel

__all__ = ["__version__", "detect", "load", "segment", "train"]


def train(source: str, out: str, **settings: Any) -> Result:
    """Train like `vitling train`. Settings are its flags, nested ones by dotted name: `**{"optim.lr": 1e-3}`."""
    from vitling.runs.api import Result
    from vitling.runs.train import train as run
    from vitling.settings.config import TrainConfig
    from vitling.settings.names import apply_overrides

    _register_readers()
    return Result(run(apply_overrides(TrainConfig(source=str(source), out=str(out)), settings)), out)


def detect(source: str, out: str, **settings: Any) -> Result:
    """Train a detector like `vitling detect`; settings are its flags."""
    from vitling.runs.api import Result
    from vitling.runs.dense import train_dense as run
    from vitling.settings.dense import DetectConfig
    from vitling.settings.names import apply_overrides

    _register_readers()
    return Result(run(apply_overrides(DetectConfig(source=str(source), out=str(out)), settings)), out)


def segment(source: str, out: str, **settings: Any) -> Result:
    """Train a segmentation network like `vitling segment`; settings are its flags."""
    from vitling.runs.api import Result
    from vitling.runs.dense import train_dense as run
    from vitling.settings.dense import SegmentConfig
    from vitling.settings.names import apply_overrides

    _register_readers()
    return Result(run(apply_overrides(SegmentConfig(source=str(source), out=str(out)), settings)), out)


def load(path: str, weights: Literal["last", "best"] = "last", device: str = "cpu") -> TrainedModel | TrainedDenseModel:
    """Load the model of a run or a model folder, ready for `predict` and `evaluate`, and `embed` for classifiers."""
    from vitling.runs.api import load_model

    _register_readers()
    return load_model(path, weights, device)


def _register_readers() -> None:
    """Let sources such as flowers102:DIR name the papers' datasets, as on the command line."""
    from vitling.papers.datasets import register_readers

    register_readers()
