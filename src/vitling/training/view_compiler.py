"""Compile the views in another process, while this one compiles the network.

This process then finds the views in the compiler's cache. If the other one fails or is too slow, this one compiles them
itself.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitling.console import Log
from vitling.data.batches import slice_batch
from vitling.errors import RunAborted
from vitling.training.compilation import Compile, compile_function, configure_compiler, load_compiler
from vitling.training.compile_workers import wait_for_workers
from vitling.training.config import LoopConfig
from vitling.training.helpers import Helper, become_helper, can_start_helper
from vitling.training.precision import choose_precision, set_deterministic
from vitling.training.processes import Processes
from vitling.training.trainer import Trainer
from vitling.version import __version__
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.plan import Plan
from vitling.views.renderer import FunctionCache, Normaliser, Renderer

VERB = "_compile-views"  # hidden command
_MIN_CORES = 8
_MIN_GPU_BYTES = 16 * 2**30  # free; a guess: most networks then leave enough for the other process
_GPU_SHARE = 1 / 4  # of the free memory, for the other process
_PATIENCE, _LEAST_PATIENCE = 1 / 2, 15.0  # of the time that the network took; seconds, for imports and workers

_started = False  # what this process compiles later is likely to be in the cache


@dataclass(frozen=True)
class ViewTask:
    """Everything that the compiled code of a run's views depends on."""

    plan: Plan
    normalise: Normaliser
    loop: LoopConfig
    device: str
    batch: int
    accumulate: int
    channels: int
    side: int  # of the stored pixels

    def compile(self) -> None:
        """Render one batch of each kind."""
        device = torch.device(self.device)
        set_deterministic(self.loop.deterministic)
        dtype = choose_precision(self.loop, device).dtype
        renderer = Renderer(self.normalise, FunctionCache(compile_function), dtype)
        (local, _), *_ = slice_batch(self.batch, 0, 1, self.accumulate)
        for epoch in range(2):  # epochs may take turns with two kinds of mixing
            key = BatchKey(0, epoch, 0, np.arange(self.batch), self.batch)
            batch = ViewBatch(self.plan, key, local)
            shape = (len(batch.instances), self.channels, self.side, self.side)
            pixels = torch.zeros(shape, dtype=torch.uint8, device=device)
            batch.render(pixels, torch.ones(shape[0], device=device), renderer)

    @property
    def mark(self) -> Path:
        """The file in the compiler's cache that says that it has the views."""
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        gpu = torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else ""
        digest = hashlib.sha256(f"{self} {__version__} {torch.__version__} {gpu}".encode()).hexdigest()
        return Path(cache_dir()) / "vitling-views" / digest[:32]


def make_task(trainer: Trainer) -> ViewTask:
    store, feed, loop = trainer.store, trainer.feed, trainer.config.loop
    return ViewTask(
        trainer.objective.plan,
        trainer.renderer.normalise,
        LoopConfig(precision=loop.precision, deterministic=loop.deterministic),  # the others cannot change the code
        str(store.device),
        feed.sizes[0],
        feed.accumulate,
        store.channels,
        store.size,
    )


def can_precompile_views(how: Compile, device: torch.device, processes: Processes) -> bool:
    """Return whether views and network are compiled for the first time and the machine can spare a process."""
    if _started or how not in ("on", "blocks") or device.type != "cuda" or processes.world > 1:
        return False
    return can_start_helper(_MIN_CORES) and torch.cuda.mem_get_info(device)[0] >= _MIN_GPU_BYTES


@contextmanager
def precompile_views(trainer: Trainer, log: Log) -> Iterator[None]:
    """Compile the views of a trainer in another process, unless the cache has them; meanwhile, the body renders them
    uncompiled."""
    global _started
    _started = True
    task, share, began = make_task(trainer), 1.0, time.monotonic()
    if trainer.store.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(trainer.store.device)
        share = _GPU_SHARE * free / total
    try:
        content = pickle.dumps((task, share))
        helper = None if task.mark.exists() else Helper(VERB)
    except (OSError, pickle.PicklingError, TypeError, AttributeError) as problem:
        log.debug(f"The views are not compiled in another process: {problem}")
        helper = None
    if helper is None:
        yield
        return
    with helper:
        helper.send(content)
        with trainer.uncompiled_views(), suppress(RunAborted):  # the helper may have taken the memory that was missing
            yield
        if not trainer.compiling:
            return
        helper.ends_within(max(_LEAST_PATIENCE, _PATIENCE * (time.monotonic() - began)))
        if reason := helper.find_problem():
            log.debug(f"The views were not compiled in another process ({reason})")
    with suppress(OSError):  # the next step compiles what the helper has not
        task.mark.parent.mkdir(parents=True, exist_ok=True)
        task.mark.touch()


def run_in_background() -> None:
    """Compile the views of the task that the starting process sends, with its share of the GPU's memory."""
    task, share = pickle.load(sys.stdin.buffer)
    become_helper()
    load_compiler(task.loop, torch.device(task.device))
    if task.device.startswith("cuda"):
        torch.cuda.set_device(torch.device(task.device).index or 0)
        torch.cuda.set_per_process_memory_fraction(share)
        configure_compiler()
        wait_for_workers()
    task.compile()
