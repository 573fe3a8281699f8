"""IDMM in one of several processes: python -m ... IMAGES OUT, with RANK and WORLD_SIZE as torchrun sets them.

For each kind of classifier it leaves a run in OUT/KIND, which is stopped after its second epoch and resumed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.tiny import tiny_backbone
from vitling import data
from vitling.data.store import build_store
from vitling.methods.drloc.loss import make_drloc_term
from vitling.methods.drloc.settings import DRLocConfig
from vitling.methods.idmm.loss import IDMM
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, Processes, RunDirectory, fit
from vitling.training.processes import init_processes

KINDS = ("full", "sampled")


class Ends:
    """Watcher that can stop the process's training after an epoch."""

    every = 1

    def __init__(self, after: int):
        self.after = after

    def __call__(self, moment):
        if moment.epoch > self.after:
            raise InterruptedError
        return {"score": 1.0 / moment.epoch}


def objective(kind: str, images: int) -> IDMM:
    torch.manual_seed(0)
    config, backbone = IDMMConfig(classifier=kind, negatives=8), tiny_backbone()
    made = IDMM(backbone, idmm_plan(config, 16), images, config)
    made.attach("drloc", make_drloc_term(backbone, DRLocConfig(hidden=16)), 1.0)
    return made


def train(kind: str, store, out: Path, processes: Processes, stop: bool = False) -> None:
    """33 images in batches of 8, two passes each: the last batch has one image, less than there are processes. The
    gradients are clipped, and the weights averaged."""
    out.mkdir(exist_ok=True)
    optim = OptimConfig(lr=2e-3, clip=0.5, accumulate=2, ema=0.9)
    loop = LoopConfig(device="cpu", trackers=())
    settings = FitConfig(4, 8, 0, optim, loop, CheckpointConfig(0.0), best="score")
    for after in (2, 4) if stop else (4,):
        made = objective(kind, len(store))
        try:
            fit(made, store, settings, [Ends(after)], run=RunDirectory(out, processes.is_main), processes=processes)
        except InterruptedError:
            continue


def main(images: str, out: Path) -> None:
    with init_processes("cpu") as processes:
        store = build_store(data.open(images, val="none").train, 16)
        for kind in KINDS:
            train(kind, store, out / kind, processes, stop=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # a torch thread once aborted the process after all work was done
