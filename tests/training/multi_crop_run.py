"""A run of IDMM, multi-crop views and mixing, in a separate process that can be killed: python -m ... IMAGES OUT."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.tiny import tiny_backbone
from tests.training.helpers import open_store
from vitling.files import write_json
from vitling.methods.idmm.loss import IDMM
from vitling.methods.idmm.settings import IDMMConfig, idmm_plan
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, RunDirectory, fit


def main(images: str, out: Path) -> None:
    torch.manual_seed(0)
    store = open_store(images, 24)
    loop = LoopConfig(device="cpu", trackers=())
    settings = FitConfig(
        epochs=40, batch=16, optim=OptimConfig(), loop=loop, checkpoint=CheckpointConfig(every_seconds=0)
    )
    objective = IDMM(tiny_backbone(drop_path=0.1), idmm_plan(IDMMConfig(), 16), len(store))
    outcome = fit(objective, store, settings, run=RunDirectory(str(out)))
    torch.save(objective.state_dict(), out / "weights.pt")
    write_json(out / "result.json", {"seconds": outcome.seconds})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
