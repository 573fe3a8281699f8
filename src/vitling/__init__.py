"""Train vision transformers on small image folders, from scratch.

    result = vitling.train("images/", out="runs/first")
    result.accuracy, result.interval, result.run, result.model
    model = vitling.load("runs/first")
    model.predict("x.jpg")
    model.evaluate("new-images/")

Importing this package does not import torch; the first call does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from vitling.version import __version__

if TYPE_CHECKING:
    from vitling.runs.api import Result, TrainedModel

__all__ = ["__version__", "load", "train"]


def train(source: str, out: str, **settings: Any) -> Result:
    """Train like `vitling train`. Settings are its flags, nested ones by dotted name: `**{"optim.lr": 1e-3}`."""
    from vitling.papers.datasets import register_readers
    from vitling.runs.api import Result
    from vitling.runs.train import train as run
    from vitling.settings.config import TrainConfig
    from vitling.settings.names import apply_overrides

    register_readers()
    return Result(run(apply_overrides(TrainConfig(source=str(source), out=str(out)), settings)), out)


def load(path: str, weights: Literal["last", "best"] = "last", device: str = "cpu") -> TrainedModel:
    """Load the model of a run or a model folder, ready for `predict`, `embed` and `evaluate`."""
    from vitling.runs.api import load_model

    return load_model(path, weights, device)
