"""Measure small runs, healthy and deliberately broken, to set the limits in `vitling.evaluation.collapse`.

    python benchmarks/collapse.py cifar100-train-10k.parquet --out results/collapse.json

Every run is watched to its end with `stop=False`; the result lists the alarms it raised.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from record import hash_data
from torch import Tensor, nn

from vitling import data
from vitling.backbones.backbone import Backbone, build
from vitling.data.store import Store, build_store
from vitling.evaluation.collapse import GRACE_STEPS
from vitling.evaluation.watching import watch_pretraining
from vitling.objectives import Objective
from vitling.objectives.progress import Progress
from vitling.training import CheckpointConfig, FitConfig, LoopConfig, OptimConfig, RunDirectory, fit
from vitling.training.rundir import describe_environment
from vitling.views.policies import make_plan

IMAGES, BATCH, SIZE, EPOCHS, OUTPUTS = 1000, 100, 16, 45, 1024
PEAK = 1e-3  # learning rate of AdamW


def make_backbone() -> Backbone:
    arguments = {"img_size": SIZE, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "in_chans": 3}
    return build("vit", "vit_tiny_patch16_224", arguments, SIZE)


def make_head(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 128), nn.GELU(), nn.Linear(128, outputs))


class IDMM(Objective):
    """IDMM: every image is a class."""

    def __init__(self):
        super().__init__(make_backbone(), make_plan("idmm-pretrain", SIZE))
        self.head = nn.Linear(self.backbone.dim, IMAGES)
        nn.init.trunc_normal_(self.head.weight, std=0.02)

    def forward(self, views, batch, progress) -> dict[str, Tensor]:
        return {f"group{g}": self._loss(view, batch) for g, view in enumerate(views)}

    def _loss(self, view, batch) -> Tensor:
        logits, own = self.head(self.backbone(view.pixels).pooled), batch.ids.repeat(view.count)
        each = [F.cross_entropy(logits, target, reduction="none") for target in (view.partner, own)]
        return torch.lerp(*each, view.lam).mean()

    def uniform_loss(self) -> dict[str, float]:
        return {name: math.log(IMAGES) for name in ("group0", "group1")}


class SimCLR(Objective):
    """SimCLR's contrastive loss."""

    def __init__(self):
        super().__init__(make_backbone(), make_plan("simclr", SIZE))
        self.head = make_head(self.backbone.dim, 64)

    def forward(self, views, batch, progress) -> dict[str, Tensor]:
        z = F.normalize(self.head(self.backbone(views[0].pixels).pooled), dim=1)
        similarity = (z @ z.T / 0.2).fill_diagonal_(-torch.inf)
        return {"contrast": F.cross_entropy(similarity, torch.arange(len(z)).roll(len(z) // 2))}

    def uniform_loss(self) -> dict[str, float]:
        return {"contrast": math.log(2 * BATCH - 1)}


class SimSiam(SimCLR):
    """SimSiam, or if `broken` without its predictor and stop-gradient."""

    def __init__(self, broken: bool):
        super().__init__()
        norm = nn.BatchNorm1d(64, affine=False)
        self.head = (
            make_head(self.backbone.dim, 64) if broken else nn.Sequential(make_head(self.backbone.dim, 64), norm)
        )
        self.predictor = None if broken else make_head(64, 64)

    def forward(self, views, batch, progress) -> dict[str, Tensor]:
        z = self.head(self.backbone(views[0].pixels).pooled)
        guess, target = (z, z) if self.predictor is None else (self.predictor(z), z.detach())
        return {"alike": 1 - F.cosine_similarity(guess, target.roll(len(z) // 2, 0)).mean()}


class DINO(SimCLR):
    """DINO without local views. A high temperature or missing centring breaks it."""

    def __init__(self, temperature: float = 0.04, centred: bool = True):
        super().__init__()
        self.temperature, self.centred = temperature, centred
        self.last = nn.Linear(64, OUTPUTS, bias=False)
        self.teacher = copy.deepcopy(nn.ModuleList(self._student())).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(OUTPUTS))

    def forward(self, views, batch, progress) -> dict[str, Tensor]:
        pixels = views[0].pixels
        with torch.no_grad():
            taught = self._outputs(self.teacher, pixels)
            target = ((taught - self.centre) / self.temperature).softmax(dim=1)
            if self.centred:
                self.centre.lerp_(taught.mean(dim=0), 0.1)
        student = (self._outputs(self._student(), pixels) / 0.1).log_softmax(dim=1)
        return {"view": -(target.roll(len(target) // 2, 0) * student).sum(dim=1).mean()}

    def after_step(self, progress: Progress) -> None:
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), nn.ModuleList(self._student()).parameters()):
                old.lerp_(new, 0.01)

    def _student(self) -> list[nn.Module]:
        return [self.backbone, self.head, self.last]

    def _outputs(self, network: Any, pixels: Tensor) -> Tensor:
        trunk, middle, last = network
        unit = F.normalize(middle(trunk(pixels).pooled), dim=1)
        return F.linear(unit, F.normalize(last.weight, dim=1))

    def uniform_loss(self) -> dict[str, float]:
        return {"view": math.log(OUTPUTS)}


RUNS: dict[str, tuple[Callable[[], Objective], float]] = {
    "instances": (IDMM, PEAK),
    "instances, a quarter of the rate": (IDMM, PEAK / 4),
    "contrast": (SimCLR, PEAK),
    "contrast, a quarter of the rate": (SimCLR, PEAK / 4),
    "stop-gradient and predictor": (lambda: SimSiam(broken=False), PEAK),
    "teacher": (DINO, PEAK),
    "teacher, a quarter of the rate": (DINO, PEAK / 4),
    "BROKEN: instances, 100 times the rate": (IDMM, 100 * PEAK),
    "BROKEN: contrast, 100 times the rate": (SimCLR, 100 * PEAK),
    "BROKEN: no stop-gradient, no predictor": (lambda: SimSiam(broken=True), PEAK),
    "BROKEN: a teacher that is not centred": (lambda: DINO(centred=False), PEAK),
    "BROKEN: a teacher of temperature 1": (lambda: DINO(temperature=1.0), PEAK),
}


def measure(make: Callable[[], Objective], lr: float, store: Store, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    objective, alarms = make(), []
    settings = FitConfig(
        epochs=EPOCHS,
        batch=BATCH,
        optim=OptimConfig(lr=lr),
        loop=LoopConfig(device="cpu", trackers=()),
        checkpoint=CheckpointConfig(every_seconds=1e9),
    )
    run = RunDirectory(folder)
    run.start(asdict(settings), ())
    watcher = watch_pretraining(store, None, SIZE, 0.875, every=3, stop=False, warn=alarms.append)
    fit(objective, store, settings, [watcher], run=run)
    evaluations = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in evaluations if "features/spread" in row]
    late = [row for row in evaluations if row["step"] >= GRACE_STEPS]
    uniform = {name: value for name, value in objective.uniform_loss().items() if name in late[0]}
    return {
        "spread": min_and_max(row["features/spread"] for row in late),
        "effective_rank": min_and_max(row["features/effective_rank"] for row in late),
        "share_of_uniform_loss_gained": {
            name: min_and_max(1 - row[name] / value for row in late) for name, value in uniform.items()
        },
        "knn_top1": late[-1]["knn/top1"],
        "first_look": {name: round(value, 4) for name, value in evaluations[0].items() if "/" in name},
        "accused": alarms,
    }


def min_and_max(values: Any) -> list[float]:
    values = list(values)
    return [round(min(values), 4), round(max(values), 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    dataset = data.open(options.images, val="none").train.subset(IMAGES, balanced=True)
    store = build_store(dataset, 24)
    runs = {}
    for name, (make, lr) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            runs[name] = measure(make, lr, store, Path(folder))
        print(name, json.dumps(runs[name]), flush=True)
    about = f"evaluations after {GRACE_STEPS} of {EPOCHS * IMAGES // BATCH} steps; a ViT of width 32; one seed"
    command = "python benchmarks/collapse.py IMAGES --out FILE"
    caution = (
        "The limits were chosen on these runs. This shows that healthy and broken runs can be separated, not how often "
        "a new run would be misclassified."
    )
    result = {
        "what": about,
        "caution": caution,
        "command": command,
        "runs": runs,
        "data_hashes": hash_data(options.images),
        "environment": describe_environment() | {"command": command},
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
