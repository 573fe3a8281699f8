"""Speed of training steps and of networks: the measurements behind tables of costs, and behind benchmarks/."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones import Backbone, create
from vitling.console import Log
from vitling.data.dataset import Dataset
from vitling.data.scan import ImageFacts
from vitling.data.store import Store, gather
from vitling.objectives import Objective
from vitling.training import precision
from vitling.training.config import FitConfig, LoopConfig, OptimConfig
from vitling.training.feed import Feed, LoadedBatch, MicroBatch
from vitling.training.pace import WARMUP_STEPS, iterate_batches, run_steps, synchronise
from vitling.training.precision import Compile
from vitling.training.processes import Processes
from vitling.training.trainer import Trainer
from vitling.views import Plan, Views

INFERENCE_ROUNDS, ROUND_SECONDS = 7, 0.5


@dataclass(frozen=True)
class Workload:
    """A training step to measure."""

    backbone: str
    plan: Plan
    batch: int
    objective: Callable[[Backbone, Plan, int], Objective]  # from network, views and number of classes
    optim: OptimConfig = field(default_factory=OptimConfig)


def make_store(n: int, size: int, device: torch.device) -> Store:
    """Make a store of `n` smooth random images, already decoded."""
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 256, (n, 3, 12, 12), generator=generator, dtype=torch.uint8).float()
    parts = [F.interpolate(part, size, mode="bicubic").clamp(0, 255).byte() for part in small.split(64)]
    pixels = torch.cat(parts).to(device)
    images = Dataset("made", [str(i) for i in range(n)], lambda i: b"", np.arange(n), np.arange(n), ("",) * n)
    facts = ImageFacts.empty(n)
    where: Literal["device", "host"] = "device" if device.type == "cuda" else "host"

    def fetch(ids: np.ndarray) -> Tensor:
        return gather(pixels, torch.from_numpy(ids).to(device, non_blocking=True))

    labels = torch.arange(n, device=device)
    return Store(images, size, 3, device, where, torch.ones(n, device=device), fetch, facts, [], labels)


class SameBatch(Feed):
    """Feed that repeats its first batch."""

    first: LoadedBatch | None = None

    def load(self, key: Any) -> LoadedBatch:
        self.first = self.first or super().load(key)
        return self.first


class FixedViewsTrainer(Trainer):
    """Trainer that repeats the views of its first batch: the cost of the step alone."""

    ready: list[Views] | None = None

    def __init__(self, objective: Objective, store: Store, config: FitConfig, processes: Processes, log: Log):
        super().__init__(objective, store, config, processes, log)
        self.feed = SameBatch(store, objective.plan, config, processes)

    def batches(self, epoch: int) -> Iterator[LoadedBatch]:
        return self.feed.batches(epoch, self.done)

    def get_views(self, micro: MicroBatch) -> list[Views]:
        self.ready = self.ready or super().get_views(micro)
        return self.ready


def make_trainer(kind: type[Trainer], work: Workload, store: Store, compile: Compile) -> Trainer:
    torch.manual_seed(0)
    backbone = create(work.backbone, work.plan.largest, drop_path=0.1)
    loop = LoopConfig(compile=compile, trackers=(), drop_last=True)
    config = FitConfig(epochs=1000, batch=work.batch, optim=work.optim, loop=loop)
    objective = work.objective(backbone, work.plan, len(store))
    return kind(objective, store, config, Processes(0, 1, store.device), Log())


def time_steps(trainer: Trainer, steps: int, batch: int) -> float:
    """Return images per second over `steps` steps after warm-up, the device's work included. The clock starts within
    an epoch, because only the first batch of a run cannot be rendered ahead."""
    source = iterate_batches(trainer)
    run_steps(trainer, source, WARMUP_STEPS)
    return steps * batch / run_steps(trainer, source, steps)[0]


def measure_inference(backbone: str, batch: int, size: int, device: torch.device, compile: Compile = "on") -> float:
    """Return images per second of a network's features on ready pixels: the median of several rounds. On GPUs the
    network is compiled and runs in the precision that training uses there."""
    network = create(backbone, size, seed=0).to(device).eval()
    chosen = precision.choose_precision(LoopConfig(), device)
    if device.type == "cuda":
        precision.compile_in_place(network, compile, graphs=True)
    pixels = torch.randn(batch, network.channels, size, size, device=device, dtype=chosen.dtype)

    def time_calls(calls: int) -> float:
        synchronise(device)
        began = time.perf_counter()
        for _ in range(calls):
            precision.mark_step()
            network(pixels)
        synchronise(device)
        return (time.perf_counter() - began) / calls

    with torch.no_grad(), chosen.autocast():
        time_calls(WARMUP_STEPS)
        calls = max(1, round(ROUND_SECONDS / time_calls(2)))
        return batch / statistics.median(time_calls(calls) for _ in range(INFERENCE_ROUNDS))
