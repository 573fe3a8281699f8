"""The methods with a momentum copy in one of several processes: python -m ... IMAGES OUT, with RANK and WORLD_SIZE as
torchrun sets them. It leaves a run of each method in OUT/METHOD/RANK."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from tests.methods.helpers import METHODS, NORMED, make
from tests.training.helpers import QUIET, run_process
from vitling.data.store import Store
from vitling.training import CheckpointConfig, FitConfig, OptimConfig, Processes, RunDirectory, fit

CHANGES = {"moco-v2": {"mask_own": True}, "densecl": {"mask_own": True}, "esvit": {"region_from": 2}}


def settings(method: str, **optim) -> FitConfig:
    """33 images in batches of 8: the last one has one image, less than there are processes, and too few for batch
    norm."""
    loop = replace(QUIET, drop_last=method in NORMED)
    optim = {"lr": 2e-3, "clip": 0.5, "final_weight_decay": 0.4 if method == "esvit" else None, **optim}
    return FitConfig(4, 8, 0, OptimConfig(**optim), loop, CheckpointConfig(0.0))


def comparable(method: str) -> dict:
    """Batch norm divides by the small differences between images, and Adam by those of gradients: with both, rounding
    grows too fast for runs to be compared to their end."""
    return {"name": "sgd", "lr": 1e-3} if method in NORMED else {}


def train(method: str, store: Store, out: Path, processes: Processes, **optim) -> dict[str, Tensor]:
    out.mkdir(parents=True)
    objective = make(method, **CHANGES.get(method, {}))
    fit(objective, store, settings(method, **optim), run=RunDirectory(out, processes.is_main), processes=processes)
    return objective.state_dict()


def train_comparably(method: str, store: Store, out: Path, processes: Processes) -> None:
    train(method, store, out / str(processes.rank), processes, **comparable(method))


if __name__ == "__main__":
    run_process(METHODS, train_comparably)
