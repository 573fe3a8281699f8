"""vitling: a folder of images into a well-trained vision transformer, from scratch.

    vitling.train("images/", out="runs/first")
    vitling.load("runs/first").predict("x.jpg")

Importing this imports no torch: the work begins with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from vitling.evaluation.model import Model

__version__ = "0.1.0"
__all__ = ["__version__", "load", "train"]


def train(source: str, out: str, **settings: Any) -> dict[str, Any]:
    """Trains as `vitling train` does; settings are its flags, dotted ones too: `**{"optim.lr": 1e-3}`."""
    import vitling.papers.datasets  # noqa: F401, registers flowers102:DIR and the like
    from vitling.runs.train import train as run
    from vitling.settings.config import TrainConfig
    from vitling.settings.names import with_overrides

    return run(with_overrides(TrainConfig(source=str(source), out=str(out)), settings))


def load(path: str, weights: Literal["last", "best"] = "last", device: str = "cpu") -> Model:
    """The model of a run or of a model folder, ready for `predict` and `embed`."""
    from vitling.evaluation.bundle import load as load_model

    return load_model(path, weights, device)
