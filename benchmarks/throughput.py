"""How much of the model's own speed the whole loop keeps, and what PIL in worker processes would give.

    python benchmarks/throughput.py --out results/throughput-h200.json
    python benchmarks/throughput.py --device cpu --workloads views-96 --out results/throughput-cpu.json

For each workload, in one process: the step alone on ready views; the whole loop with store and views; the views alone;
the same step fed by torchvision and PIL from decoded pixels through a DataLoader with all cores. Ratios are within the
run. The objectives here are stand-ins with the shape of the method's work: they are for timing, not for training.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from vitling.data.store import Store
from vitling.objectives import Batch, Objective
from vitling.training.loop import _Trainer
from vitling.training.pace import WARM, ReadyViews, Workload, made_store, pace, trainer_of, wait
from vitling.training.rundir import environment
from vitling.views import Blur, Flip, Grey, Jitter, Plan, RandAugment, Solarise, Views
from vitling.views.policies import named

STORE, STEPS, BATCHES = 384, 40, 8


class Instances(Objective):
    """IDMM and supervised: a linear classifier over instances, on every crop."""

    def __init__(self, backbone, plan: Plan, classes: int):
        super().__init__(backbone, plan)
        self.head = nn.Linear(backbone.dim, classes)

    def forward(self, views: list[Views], batch: Batch, progress: Any) -> dict[str, Tensor]:
        """All crops are of one size here, and go through the network together."""
        pixels = views[0].pixels if len(views) == 1 else torch.cat([view.pixels for view in views])
        logits = self.head(self.backbone(pixels).pooled).float().split([len(view.pixels) for view in views])
        target = [batch.ids.repeat(view.count) for view in views]
        return {f"group{g}": F.cross_entropy(x, t) for g, (x, t) in enumerate(zip(logits, target))}


class Contrast(Objective):
    """SimCLR: two views, a projection, NT-Xent."""

    def __init__(self, backbone, plan: Plan, classes: int):
        super().__init__(backbone, plan)
        self.head = nn.Sequential(nn.Linear(backbone.dim, backbone.dim), nn.ReLU(), nn.Linear(backbone.dim, 256))

    def forward(self, views: list[Views], batch: Batch, progress: Any) -> dict[str, Tensor]:
        z = F.normalize(self.head(self.backbone(views[0].pixels).pooled).float())
        similarity = z @ z.T / 0.1
        similarity.fill_diagonal_(float("-inf"))
        n = len(batch.ids)
        return {"contrast": F.cross_entropy(similarity, torch.arange(2 * n, device=z.device).roll(n))}


class Distillation(Objective):
    """DINO: a student on all views, a teacher on the two global ones."""

    def __init__(self, backbone, plan: Plan, classes: int):
        super().__init__(backbone, plan)
        self.head = nn.Sequential(nn.Linear(backbone.dim, 2048), nn.GELU(), nn.Linear(2048, 256), nn.Linear(256, 4096))
        self.teacher, self.teacher_head = copy.deepcopy(backbone), copy.deepcopy(self.head)
        for p in (*self.teacher.parameters(), *self.teacher_head.parameters()):
            p.requires_grad_(False)

    def networks(self) -> list[nn.Module]:
        return [self.backbone, self.teacher]

    def forward(self, views: list[Views], batch: Batch, progress: Any) -> dict[str, Tensor]:
        wide = torch.cat([views[0].pixels, views[1].pixels])
        with torch.no_grad():
            target = (self.teacher_head(self.teacher(wide).pooled).float() / 0.04).softmax(1).chunk(2)
        pooled = [self.backbone(wide).pooled, self.backbone(views[2].pixels).pooled]
        student = (self.head(torch.cat(pooled)).float() / 0.1).log_softmax(1).split(len(batch.ids))
        return {"view": -torch.stack([(t * s).sum(1).mean() for t in target for s in student]).mean()}

    @torch.no_grad()
    def after_step(self, progress: Any) -> None:
        for live, slow in ((self.backbone, self.teacher), (self.head, self.teacher_head)):
            torch._foreach_lerp_(list(slow.parameters()), list(live.parameters()), 0.004)


WORKLOADS = {
    "idmm": Workload("deit_tiny_patch16_224", named("idmm-pretrain"), 256, Instances),
    "idmm-64": Workload("deit_tiny_patch16_224", named("idmm-pretrain"), 64, Instances),
    "simclr": Workload("vit_small_patch16_224", named("simclr"), 256, Contrast),
    "supervised": Workload("swin_tiny_patch4_window7_224", named("supervised"), 256, Instances),
    "dino": Workload("swin_tiny_patch4_window7_224", named("dino"), 64, Distillation),
    "tiny": Workload("vit_micro_patch4_32", named("simclr", 32), 64, Contrast),
    "views-96": Workload("vit_micro_patch4_32", named("simclr", 96), 64, Contrast),
}


def as_torchvision(plan: Plan) -> Callable[[Image.Image], list[Tensor]]:
    """The same views with torchvision's transforms on PIL images; mixing is not counted."""
    made = []
    for group in plan.groups:
        filter = getattr(T.InterpolationMode, group.policy.filter.upper())
        steps: list[Any] = [T.RandomResizedCrop(group.size, group.policy.scale, group.policy.ratio, filter)]
        for step in group.policy.steps:
            match step:
                case Flip(prob):
                    steps.append(T.RandomHorizontalFlip(prob))
                case Jitter(b, c, s, h, prob):
                    steps.append(T.RandomApply([T.ColorJitter(b, c, s, h)], prob))
                case Grey(prob):
                    steps.append(T.RandomGrayscale(prob))
                case Blur(prob, radius):
                    steps.append(T.RandomApply([_PilBlur(radius)], prob))
                case Solarise(prob, threshold):
                    steps.append(T.RandomSolarize(threshold, prob))
                case RandAugment():
                    from timm.data.auto_augment import rand_augment_transform

                    steps.append(rand_augment_transform("rand-m9-mstd0.5-inc1", {"img_mean": (124, 116, 104)}))
        steps += [T.ToTensor(), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        if group.policy.erase:
            steps.append(T.RandomErasing(group.policy.erase, value="random"))
        made += [T.Compose(steps)] * group.count
    return lambda image: [transform(image) for transform in made]


class _PilBlur:
    def __init__(self, radius: tuple[float, float]):
        self.radius = radius

    def __call__(self, image: Image.Image) -> Image.Image:
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(random.uniform(*self.radius)))


class PilImages(Dataset):
    def __init__(self, pixels: np.ndarray, plan: Plan, length: int):
        self.pixels, self.length, self.plan = pixels, length, plan
        self.transform: Callable | None = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> list[Tensor]:
        self.transform = self.transform or as_torchvision(self.plan)
        return self.transform(Image.fromarray(self.pixels[i % len(self.pixels)]))


class PilFed(ReadyViews):
    """The same step, its views out of worker processes."""

    incoming: Iterator[list[Tensor]]

    def views_of(self, part):
        fresh = [view.to(self.store.device, non_blocking=True) for view in next(self.incoming)]
        fresh = [view.to(self.precision.dtype) for view in fresh]
        views, first = [], 0
        for group in self.objective.plan.groups:
            views.append(Views(torch.cat(fresh[first : first + group.count]), group.count))
            first += group.count
        return views


def views_pace(trainer: _Trainer, steps: int, batch: int) -> float:
    loaded = next(iter(trainer.feed.batches(0, 0)))

    def some(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                if trainer.ahead:
                    for part in loaded.parts:
                        part.views = None
                    trainer.ahead.prepare(loaded)
                for part in loaded.parts:
                    trainer.views_of(part)

    some(WARM)
    wait(trainer.store.device)
    started = time.perf_counter()
    some(steps)
    wait(trainer.store.device)
    return steps * batch / (time.perf_counter() - started)


def pil_loader(work: Workload, store: Store, workers: int, steps: int) -> DataLoader:
    pixels = torch.cat([store.fetch(np.arange(i, i + 64))[0].cpu() for i in range(0, min(512, len(store)), 64)])
    images = PilImages(
        pixels.permute(0, 2, 3, 1).contiguous().numpy(), work.plan, (steps + WARM + 2 * workers) * work.batch
    )
    pinned = store.device.type == "cuda"
    return DataLoader(images, work.batch, num_workers=workers, pin_memory=pinned, drop_last=True, prefetch_factor=2)


def measure(
    name: str, device: torch.device, workers: int, compiled: bool, with_pil: bool, steps: int
) -> dict[str, Any]:
    work = WORKLOADS[name]
    size = STORE if work.plan.largest > 112 else 192
    store = made_store(work.batch * BATCHES, size, device)
    crops = work.plan.crops
    row: dict[str, Any] = {"workload": name, "backbone": work.backbone, "batch": work.batch, "crops": crops}
    views_only = name.startswith("views")
    if not views_only:
        row["step_alone"] = pace(trainer_of(ReadyViews, work, store, compiled), steps, work.batch)
        _reset(device)
        whole = trainer_of(_Trainer, work, store, compiled)
        row["whole_loop"] = pace(whole, steps, work.batch)
        row["ratio"] = row["whole_loop"] / row["step_alone"]
        row["crops_per_second"] = row["whole_loop"] * crops
        if device.type == "cuda":
            row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    else:
        whole = trainer_of(_Trainer, work, store, compiled)
    row["views_alone"] = views_pace(whole, steps, work.batch)
    if with_pil:
        loader = pil_loader(work, store, workers, steps)
        if views_only:
            row["pil_alone"] = _loader_pace(loader, steps, work.batch)
            row["views_over_pil"] = row["views_alone"] / row["pil_alone"]
        else:
            fed = trainer_of(PilFed, work, store, compiled)
            fed.incoming = iter(loader)
            row["pil_fed"] = pace(fed, steps, work.batch)
            row["over_pil"] = row["whole_loop"] / row["pil_fed"]
    _reset(device)
    return row


def _loader_pace(loader: DataLoader, steps: int, batch: int) -> float:
    incoming = iter(loader)
    for _ in range(WARM):
        next(incoming)
    started = time.perf_counter()
    for _ in range(steps):
        next(incoming)
    return steps * batch / (time.perf_counter() - started)


def _reset(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["idmm", "idmm-64", "simclr", "supervised", "dino"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--no-pil", action="store_true", help="leave out the DataLoader")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--out", help="write the rows as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = []
    for name in options.workloads:
        compiled = device.type == "cuda" and not options.no_compile
        rows.append(measure(name, device, options.workers, compiled, not options.no_pil, options.steps))
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
        if options.out:
            Path(options.out).parent.mkdir(parents=True, exist_ok=True)
            Path(options.out).write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
