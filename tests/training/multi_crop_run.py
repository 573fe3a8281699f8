"""A run of multi-crop views with mixing, as a process of its own that can be killed: python -m ... IMAGES OUT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tiny import tiny_backbone
from vitling import data
from vitling.data.store import build_store
from vitling.files import write_json
from vitling.objectives import Batch, Objective
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, RunDirectory, fit
from vitling.views import Views
from vitling.views.policies import named


class Instances(Objective):
    """Tells the images apart in every crop, mixed ones by their shares."""

    def __init__(self, images: int):
        super().__init__(tiny_backbone(drop_path=0.1), named("idmm-pretrain", 16))
        self.head = nn.Linear(self.backbone.dim, images)

    def forward(self, views: list[Views], batch: Batch, progress: Any) -> dict[str, Tensor]:
        return {f"group{g}": self._loss(view, batch) for g, view in enumerate(views)}

    def _loss(self, view: Views, batch: Batch) -> Tensor:
        logits = self.head(self.backbone(view.pixels).pooled)
        own, other = (
            F.cross_entropy(logits, t, reduction="none") for t in (batch.ids.repeat(view.count), view.partner)
        )
        return torch.lerp(other, own, view.share).mean()


def main(images: str, out: Path) -> None:
    torch.manual_seed(0)
    store = build_store(data.open(images, val="none").train, 24)
    loop = LoopConfig(device="cpu", trackers=())
    settings = FitConfig(
        epochs=40, batch=16, optim=OptimConfig(), loop=loop, checkpoint=CheckpointConfig(every_seconds=0)
    )
    objective = Instances(len(store))
    outcome = fit(objective, store, settings, run=RunDirectory(str(out)))
    torch.save(objective.state_dict(), out / "weights.pt")
    write_json(out / "result.json", {"seconds": outcome.seconds})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
