"""How fast the loop's own training steps are, and a network by itself: for benchmarks, and for tables of costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.backbones import Backbone, create
from vitling.data.dataset import Dataset
from vitling.data.scan import ImageFacts
from vitling.data.store import Store, gather
from vitling.objectives import Objective
from vitling.training import precision as machine
from vitling.training.config import FitConfig, LoopConfig, OptimConfig
from vitling.training.feed import Feed, Loaded, sizes_of_batches
from vitling.training.loop import Trainer
from vitling.training.precision import Compile
from vitling.training.processes import Processes
from vitling.training.rundir import RunDirectory
from vitling.views import Plan, Views

WARM = 6  # steps that do not count


@dataclass(frozen=True)
class Workload:
    backbone: str
    plan: Plan
    batch: int
    objective: Callable[[Backbone, Plan, int], Objective]  # of a network, its views and the number of classes
    optim: OptimConfig = field(default_factory=OptimConfig)


def made_store(n: int, size: int, device: torch.device) -> Store:
    """Smooth random pictures, decoded."""
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
    """The first batch, again and again."""

    first: Loaded | None = None

    def load(self, place):
        self.first = self.first or super().load(place)
        return self.first


class ReadyViews(Trainer):
    """The step alone: the views of the first batch, again and again."""

    ready: list[Views] | None = None

    def __init__(self, objective, store, config, watchers, run, processes):
        super().__init__(objective, store, config, watchers, run, processes)
        self.feed = SameBatch(store, objective.plan, config, processes)

    def batches(self, epoch):
        return self.feed.batches(epoch, self.done)

    def views_of(self, part):
        self.ready = self.ready or super().views_of(part)
        return self.ready


def trainer_of(kind: type[Trainer], work: Workload, store: Store, compile: Compile) -> Trainer:
    torch.manual_seed(0)
    backbone = create(work.backbone, work.plan.largest, drop_path=0.1)
    loop = LoopConfig(compile=compile, trackers=(), drop_last=True)
    config = FitConfig(epochs=1000, batch=work.batch, optim=work.optim, loop=loop)
    objective = work.objective(backbone, work.plan, len(store))
    run = RunDirectory(tempfile.mkdtemp())
    return kind(objective, store, config, (), run, Processes(0, 1, store.device))


def settled_pace(objective: Objective, store: Store, config: FitConfig, processes: Processes) -> tuple[float, Compile]:
    """Images a second of training, over a second or more, and how that was compiled. The clock starts when all
    that is compiled and recorded has been: after an epoch, whose last batch may have graphs of its own. An objective
    with phases is in its last one, where most takes part."""
    with _quiet_trainer(objective, store, config, processes) as (trainer, how):
        source, steps = _endless(trainer), 1
        _take(trainer, source, trainer.per_epoch + WARM if how != "off" else 1)
        while True:
            seconds, images = _take(trainer, source, steps)
            if processes.any(int(seconds >= 1)):
                return images / seconds, how if trainer.compiling else "off"
            steps *= 2


def first_steps(objective: Objective, store: Store, config: FitConfig, processes: Processes) -> None:
    """All that is compiled for whole batches is, and is in the compiler's cache; a RuntimeError where that came out
    otherwise than in a run of its own."""
    with _quiet_trainer(objective, store, config, processes) as (trainer, how):
        passes = trainer.feed.accumulate
        _take(trainer, _endless(trainer), WARM)
        if trainer.feed.accumulate != passes:
            raise RuntimeError("the memory did not suffice for whole batches")
        if how != "off" and not trainer.compiling:
            raise RuntimeError("torch.compile failed")


@contextmanager
def _quiet_trainer(
    objective: Objective, store: Store, config: FitConfig, processes: Processes
) -> Iterator[tuple[Trainer, Compile]]:
    """Writes and says nothing, is compiled as the run will be, and never comes to an end."""
    steps = config.epochs * len(sizes_of_batches(config, len(store), store.device))
    how = machine.chosen_compile(config.loop, store.device, steps)
    quiet = replace(config, epochs=2 * max(config.epochs, 1000), loop=replace(config.loop, compile=how))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(objective, store, quiet, (), RunDirectory(folder, writes=False), processes)
        trainer.done = trainer.per_epoch * config.epochs if objective.phases > 1 else 0
        yield trainer, how


def pace(trainer: Trainer, steps: int, batch: int) -> float:
    """Images a second, the device's work included. The clock starts in the middle of an epoch: a run's first batch is
    the only one whose views cannot be painted ahead."""
    source = _endless(trainer)
    _take(trainer, source, WARM)
    return steps * batch / _take(trainer, source, steps)[0]


def inference_pace(backbone: str, batch: int, size: int, device: torch.device, compile: Compile = "on") -> float:
    """Images a second of which a network makes features, the pixels being there: the median of seven rounds. On GPUs
    compiled, in the format that training has there."""
    network = create(backbone, size, seed=0).to(device).eval()
    precision = machine.choose_precision(LoopConfig(), device)
    if device.type == "cuda":
        machine.compile_in_place(network, compile, graphs=True)
    pixels = torch.randn(batch, network.channels, size, size, device=device, dtype=precision.dtype)

    def seconds(calls: int) -> float:
        wait(device)
        started = time.perf_counter()
        for _ in range(calls):
            machine.mark_step()
            network(pixels)
        wait(device)
        return (time.perf_counter() - started) / calls

    with torch.no_grad(), precision.autocast():
        seconds(WARM)
        calls = max(1, round(0.5 / seconds(2)))
        return batch / statistics.median(seconds(calls) for _ in range(7))


def _endless(trainer: Trainer) -> Iterator[Loaded]:
    return chain.from_iterable(trainer.batches(epoch) for epoch in count(trainer.done // trainer.per_epoch))


def _take(trainer: Trainer, source: Iterator[Loaded], steps: int) -> tuple[float, int]:
    """Some steps: how long they took, and how many images they had."""
    images, device = 0, trainer.store.device
    wait(device)
    started = time.perf_counter()
    for loaded in islice(source, steps):
        trainer.step(loaded)
        images += len(loaded.place.ids)
    wait(device)
    trainer.recorder.rows.clear()
    return time.perf_counter() - started, images


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
