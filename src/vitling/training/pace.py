"""Trial steps before a run: to measure its pace for --minutes, and to fill the compiler's cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count, islice

import torch

from vitling.console import Log
from vitling.data.store import Store
from vitling.objectives.objective import Objective
from vitling.training.compilation import Compile, choose_compile
from vitling.training.compile_ahead import can_compile_ahead, compile_ahead
from vitling.training.config import FitConfig
from vitling.training.feed import LoadedBatch, choose_batch_sizes
from vitling.training.processes import Processes
from vitling.training.trainer import Trainer

WARMUP_STEPS = 6  # not measured: compilation, then the capture of CUDA graphs
SLOW_STEP = 10.0  # seconds; three such steps would be half of a minute
SETTLED = 1.2  # ratio of the paces of two rounds up to which they agree
MIN_ROUND_SECONDS = 1.0
MIN_COMPILED_ROUND_SECONDS = 0.4  # compiled steps vary little


def measure_pace(
    objective: Objective,
    store: Store,
    config: FitConfig,
    processes: Processes,
    log: Log,
    seconds_left: float = math.inf,
) -> tuple[float, Compile]:
    """Return images per second of training, and how it was compiled. `seconds_left` is the time of the run.

    The clock starts once everything is compiled and captured: after an epoch, whose last batch may have graphs of its
    own. Rounds of steps are measured until one is long enough and hardly faster than the round before: the first steps
    on a CPU can be ten times slower than the others. If the first one takes SLOW_STEP or longer, only the second
    is measured. An objective with phases is measured in its last phase, in which most of it takes part.
    """
    how = _choose_compile(store, config)
    with _trial_trainer(objective, store, config, processes, how) as trainer:
        source, steps, pace = iterate_batches(trainer), 1, 0.0
        if can_compile_ahead(how, store.device, processes) and trainer.replay:
            compile_ahead(trainer, next(source), log, seconds_left)
        seconds, images = run_steps(trainer, source, trainer.per_epoch + WARMUP_STEPS if how != "off" else 1)
        if how == "off" and processes.any(int(seconds >= SLOW_STEP)):
            seconds, images = run_steps(trainer, source, 1)
            return images / seconds, how
        least = MIN_COMPILED_ROUND_SECONDS if trainer.compiling else MIN_ROUND_SECONDS
        while True:
            before, (seconds, images) = pace, run_steps(trainer, source, steps)
            pace = images / seconds
            is_long, settled = processes.any(int(seconds >= least)), processes.any(int(pace <= SETTLED * before))
            if is_long and settled:
                return pace, how if trainer.compiling else "off"
            steps *= 1 if is_long else 2  # all processes take the same number of steps


def compile_before(
    build: Callable[[], Objective], store: Store, config: FitConfig, processes: Processes, log: Log
) -> None:
    """Fill the compiler's cache for a run whose pace is not measured, if other processes can do it."""
    how = _choose_compile(store, config)
    if can_compile_ahead(how, store.device, processes):
        log.info("Compiling the network and the views in other processes.")
        with _trial_trainer(build(), store, config, processes, how) as trainer:
            if trainer.replay:
                compile_ahead(trainer, next(iterate_batches(trainer)), log)


def warm_compile_cache(objective: Objective, store: Store, config: FitConfig, processes: Processes) -> None:
    """Compile everything that whole batches need, so that the run finds it in the compiler's cache. Raise RuntimeError
    if these steps had to be compiled differently from the run's own."""
    how = _choose_compile(store, config)
    with _trial_trainer(objective, store, config, processes, how) as trainer:
        passes = trainer.feed.accumulate
        run_steps(trainer, iterate_batches(trainer), WARMUP_STEPS)
        if trainer.feed.accumulate != passes:
            raise RuntimeError("out of memory with whole batches")
        if how != "off" and not trainer.compiling:
            raise RuntimeError("torch.compile failed")


def _choose_compile(store: Store, config: FitConfig) -> Compile:
    steps = config.epochs * len(choose_batch_sizes(config, len(store), store.device))
    return choose_compile(config.loop, store.device, steps)


@contextmanager
def _trial_trainer(
    objective: Objective, store: Store, config: FitConfig, processes: Processes, how: Compile
) -> Iterator[Trainer]:
    """Yield a trainer that is compiled as the run will be, writes and prints nothing, and never finishes."""
    quiet = replace(config, epochs=2 * max(config.epochs, 1000), loop=replace(config.loop, compile=how))
    trainer = Trainer(objective, store, quiet, processes, Log(silent=True))
    trainer.done = trainer.per_epoch * config.epochs if objective.phases > 1 else 0
    yield trainer


def iterate_batches(trainer: Trainer) -> Iterator[LoadedBatch]:
    """Yield batches without end, from the trainer's epoch on."""
    return chain.from_iterable(trainer.batches(epoch) for epoch in count(trainer.done // trainer.per_epoch))


def run_steps(trainer: Trainer, source: Iterator[LoadedBatch], steps: int) -> tuple[float, int]:
    """Train `steps` steps; return their seconds, the device's work included, and their number of images."""
    images, device = 0, trainer.store.device
    synchronise(device)
    began = time.perf_counter()
    for loaded in islice(source, steps):
        trainer.step(loaded)
        images += len(loaded.key.ids)
    synchronise(device)
    return time.perf_counter() - began, images


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
