"""The methods with a momentum copy in one of several processes: python -m ... IMAGES OUT, with RANK and WORLD_SIZE as
torchrun sets them. It leaves a run of each method in OUT/METHOD."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch import Tensor

from tests.methods.helpers import METHODS, NORMED, make
from vitling import data
from vitling.data.store import Store, build_store
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, Processes, RunDirectory, fit
from vitling.training.processes import init_processes

CHANGES = {"moco-v2": {"mask_own": True}, "densecl": {"mask_own": True}, "esvit": {"region_from": 2}}


def settings(method: str, **optim) -> FitConfig:
    """33 images in batches of 8: the last one has one image, less than there are processes, and too few for batch
    norm."""
    loop = LoopConfig(device="cpu", trackers=(), drop_last=method in NORMED)
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


def main(images: str, out: Path) -> None:
    with init_processes("cpu") as processes:
        store = build_store(data.open(images, val="none").train, 16)
        for method in METHODS:
            train(method, store, out / f"{method}-{processes.rank}", processes, **comparable(method))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # see idmm_run.py
