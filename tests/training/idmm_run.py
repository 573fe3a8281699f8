"""IDMM in one of several processes: python -m ... IMAGES OUT, with RANK and WORLD_SIZE as torchrun sets them.

For each kind of classifier it leaves a run in OUT/KIND, which is stopped after its second epoch and resumed.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny import tiny_backbone
from tests.training.helpers import QUIET, fit_resumed, run_process
from vitling.data.store import Store
from vitling.methods.drloc.loss import make_drloc_term
from vitling.methods.drloc.settings import DRLocConfig
from vitling.methods.idmm.loss import IDMM
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.training import CheckpointConfig, FitConfig, OptimConfig, Processes

KINDS = ("full", "sampled")


def objective(kind: str, images: int) -> IDMM:
    torch.manual_seed(0)
    config, backbone = IDMMConfig(classifier=kind, negatives=8), tiny_backbone()
    made = IDMM(backbone, idmm_plan(config, 16), images, config)
    made.attach("drloc", make_drloc_term(backbone, DRLocConfig(hidden=16)), 1.0)
    return made


def train(kind: str, store: Store, out: Path, processes: Processes) -> None:
    """33 images in batches of 8, two passes each: the last batch has one image, less than there are processes. The
    gradients are clipped, and the weights averaged."""
    optim = OptimConfig(lr=2e-3, clip=0.5, accumulate=2, ema=0.9)
    settings = FitConfig(4, 8, 0, optim, QUIET, CheckpointConfig(0.0), best="score")
    fit_resumed(lambda: objective(kind, len(store)), store, settings, out, processes)


if __name__ == "__main__":
    run_process(KINDS, train)
