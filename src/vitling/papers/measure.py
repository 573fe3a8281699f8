"""Speed of training steps and of networks: the measurements behind tables of costs, and behind benchmarks/.

A step is the loop's own on ready views: networks, losses, backward pass, clipping and the optimiser.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
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
from vitling.errors import RunAborted
from vitling.objectives import Objective
from vitling.training import compilation, precision
from vitling.training.compilation import Compile
from vitling.training.config import FitConfig, LoopConfig, OptimConfig
from vitling.training.feed import Feed, LoadedBatch, MicroBatch
from vitling.training.pace import WARMUP_STEPS, iterate_batches, run_steps, synchronise
from vitling.training.processes import Processes
from vitling.training.trainer import Trainer
from vitling.views import Plan, Views

MakeObjective = Callable[[Backbone, Plan, int], Objective]  # from network, views and number of classes
ROUNDS, STEPS = 7, 20
SECONDS = 2.0  # approximate length of a round; slow networks take fewer steps
INFERENCE_ROUNDS, ROUND_SECONDS = 7, 0.5


@dataclass(frozen=True)
class Workload:
    """A training step to measure."""

    backbone: str
    plan: Plan
    batch: int
    objective: MakeObjective
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


def compare_steps(
    backbone: str,
    batch: int,
    size: int,
    plan: Plan,
    objectives: Mapping[str, MakeObjective],
    device: torch.device,
    compile: Compile = "on",
    by_turns: bool = True,
) -> dict[str, Any]:
    """Measure median seconds of a step, what each objective adds to the first, and the peak of GPU memory.

    Rounds take turns, and the first one warms up; with `by_turns=False` one objective follows the other, for GPUs that
    cannot hold them together.
    """
    store, first = make_store(8 * batch, size, device), next(iter(objectives))

    def time_rounds(names: Iterable[str], count: int) -> tuple[list[dict[str, float]], set[tuple[int, bool]]]:
        """Return seconds of a step round by round, and how steps ran: (passes, recorded as a graph)."""
        works = {name: Workload(backbone, plan, batch, objectives[name]) for name in names}
        how = compile if device.type == "cuda" else "off"
        trainers = {name: make_trainer(FixedViewsTrainer, work, store, how) for name, work in works.items()}
        found: list[dict[str, float]] = []
        steps = 5
        for _ in range(count):
            found.append({name: batch / time_steps(trainer, steps, batch) for name, trainer in trainers.items()})
            steps = max(3, min(STEPS, round(SECONDS / max(found[0].values()))))
        return found, {(one.feed.accumulate, bool(one.replay and one.replay.captures)) for one in trainers.values()}

    rounds: list[dict[str, float]] = [{} for _ in range(ROUNDS)]
    all_ways: set[tuple[int, bool]] = set()
    try:
        for names in [list(objectives)] if by_turns else [[name] for name in objectives]:
            compilation.free_graphs()
            found, ways = time_rounds(names, ROUNDS)
            all_ways |= ways
            for whole, part in zip(rounds, found):
                whole.update(part)
        memory = {name: _measure_peak(partial(time_rounds, [name], 1), device) for name in objectives}
    finally:
        reset_compiler()
    _check_comparable(all_ways, backbone, batch)
    seconds = {name: statistics.median(times[name] for times in rounds[1:]) for name in objectives}
    return {
        "backbone": backbone,
        "batch": batch,
        "size": size,
        "seconds": seconds,
        "images_per_second": {name: batch / value for name, value in seconds.items()},
        "overhead": {name: seconds[name] / seconds[first] - 1 for name in seconds if name != first},
        "peak_gb": memory,
        "rounds": rounds,
    }


def _check_comparable(ways: set[tuple[int, bool]], backbone: str, batch: int) -> None:
    if any(passes > 1 for passes, _ in ways):
        raise RunAborted(f"Out of memory: {backbone} cannot train {batch} images in one pass.")
    if len(ways) > 1:
        raise RunAborted(f"{backbone}, batch {batch}: only some steps could be recorded, so they cannot be compared.")


def reset_compiler() -> None:
    """Free the GPU's memory and the compiled graphs, of which a process keeps a limited number."""
    torch._dynamo.reset()
    compilation.free_memory()


def _measure_peak(task: Callable[[], Any], device: torch.device) -> float:
    """Return the peak of GPU memory in GB, including what was allocated before; 0 on CPUs."""
    if device.type != "cuda":
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    task()
    return torch.cuda.max_memory_allocated() / 1e9


def measure_inference(backbone: str, batch: int, size: int, device: torch.device, compile: Compile = "on") -> float:
    """Return images per second of a network's features on ready pixels: the median of several rounds. On GPUs the
    network is compiled and runs in the precision that training uses there."""
    network = create(backbone, size, seed=0).to(device).eval()
    chosen = precision.choose_precision(LoopConfig(), device)
    if device.type == "cuda":
        compilation.compile_in_place(network, compile, graphs=True)
    pixels = torch.randn(batch, network.channels, size, size, device=device, dtype=chosen.dtype)

    def time_calls(calls: int) -> float:
        synchronise(device)
        began = time.perf_counter()
        for _ in range(calls):
            compilation.mark_step()
            network(pixels)
        synchronise(device)
        return (time.perf_counter() - began) / calls

    try:
        with torch.no_grad(), chosen.autocast():
            time_calls(WARMUP_STEPS)
            calls = max(1, round(ROUND_SECONDS / time_calls(2)))
            return batch / statistics.median(time_calls(calls) for _ in range(INFERENCE_ROUNDS))
    finally:
        reset_compiler()
