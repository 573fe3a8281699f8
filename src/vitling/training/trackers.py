"""Experiment trackers that receive metrics besides metrics.jsonl."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from vitling.errors import UserError


class Tracker(Protocol):
    def log(self, numbers: dict[str, float], step: int) -> None: ...
    def close(self) -> None: ...


class Trackers:
    """The trackers of a run, by name."""

    def __init__(self, names: tuple[str, ...], folder: Path, config: dict[str, Any]):
        self.members = [_open(name, folder, config) for name in names if name != "none"]

    def log(self, numbers: dict[str, float], step: int) -> None:
        for member in self.members:
            member.log(numbers, step)

    def close(self) -> None:
        for member in self.members:
            member.close()


class _TensorBoard:
    def __init__(self, folder: Path, config: dict[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        try:
            self.writer = SummaryWriter(str(folder / "tensorboard"), flush_secs=10)
        except UnicodeEncodeError:
            raise UserError(
                f"TensorBoard cannot write to {folder}, whose name is not UTF-8. Pass --loop.trackers none, or a "
                "different --out."
            ) from None

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _WandbLike:
    """wandb and trackio, which share one interface."""

    def __init__(self, module: Any, folder: Path, config: dict[str, Any]):
        self.module = module
        module.init(project="vitling", name=folder.name, config=config)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.module.log(numbers, step=step)

    def close(self) -> None:
        self.module.finish()


class _Mlflow:
    def __init__(self, module: Any, folder: Path, config: dict[str, Any]):
        self.module = module
        module.set_experiment("vitling")
        module.start_run(run_name=folder.name)
        module.log_dict(config, "config.json")

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.module.log_metrics(numbers, step=step)

    def close(self) -> None:
        self.module.end_run()


def check_trackers(names: tuple[str, ...]) -> None:
    """Raise UserError for an unknown or missing tracker, without starting any."""
    for name in names:
        if name not in ("none", "tensorboard"):
            _import(name)


def _open(name: str, folder: Path, config: dict[str, Any]) -> Tracker:
    if name == "tensorboard":
        return _TensorBoard(folder, config)
    return _Mlflow(_import(name), folder, config) if name == "mlflow" else _WandbLike(_import(name), folder, config)


def _import(name: str) -> Any:
    if name not in ("wandb", "mlflow", "trackio"):
        raise UserError(f"Unknown tracker {name!r}. Use tensorboard, wandb, mlflow, trackio or none.")
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"The tracker {name} is not installed. Run pip install 'vitling[track]'.") from None
