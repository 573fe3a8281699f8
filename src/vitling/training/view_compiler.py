"""Compile the views in another process, while this one compiles the network.

This process then finds the views in the compiler's cache. If the other one fails or is too slow, this one compiles them
itself.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import torch

from vitling.console import Log
from vitling.data.batches import slice_batch
from vitling.training.compilation import Compile, compile_function
from vitling.training.config import LoopConfig
from vitling.training.helpers import become_helper, can_start_helper, start_helper, stop_helper
from vitling.training.precision import choose_precision, set_deterministic
from vitling.training.processes import Processes
from vitling.training.trainer import Trainer
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.plan import Plan
from vitling.views.renderer import FunctionCache, Normaliser, Renderer

VERB = "_compile-views"  # hidden command
_MIN_CORES = 8
_MIN_GPU_BYTES = 16 * 2**30  # free, so that both processes fit with certainty
_GPU_SHARE = 1 / 4  # of the free memory, for the other process
_PATIENCE = 1 / 2  # of the time that the network took: with a warm cache, waiting takes longer than compiling

_started = False  # what this process compiles later is likely to be in the cache


@dataclass(frozen=True)
class ViewTask:
    """How a run renders its views."""

    plan: Plan
    normalise: Normaliser
    loop: LoopConfig
    device: str
    batch: int
    accumulate: int
    images: int
    channels: int
    side: int  # of the stored pixels
    memory_share: float = 1.0  # of the GPU's memory

    def compile(self) -> None:
        """Render one batch of each kind."""
        device = torch.device(self.device)
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(self.memory_share, device)
        set_deterministic(self.loop.deterministic)
        dtype = choose_precision(self.loop, device).dtype
        renderer = Renderer(self.normalise, FunctionCache(compile_function), dtype)
        (local, _), *_ = slice_batch(self.batch, 0, 1, self.accumulate)
        for epoch in range(2):  # epochs may take turns with two kinds of mixing
            key = BatchKey(0, epoch, 0, np.arange(self.batch), self.images)
            batch = ViewBatch(self.plan, key, local)
            shape = (len(batch.instances), self.channels, self.side, self.side)
            pixels = torch.zeros(shape, dtype=torch.uint8, device=device)
            batch.render(pixels, torch.ones(shape[0], device=device), renderer)


def can_compile_views_beside(how: Compile, device: torch.device, processes: Processes) -> bool:
    """Return whether views and network are compiled for the first time and the machine can spare a process."""
    if _started or how not in ("on", "blocks") or device.type != "cuda" or processes.world > 1:
        return False
    return can_start_helper(_MIN_CORES) and torch.cuda.mem_get_info(device)[0] >= _MIN_GPU_BYTES


@contextmanager
def compile_views_beside(trainer: Trainer, log: Log) -> Iterator[None]:
    """Compile the views of a trainer in another process; meanwhile, the body renders them uncompiled."""
    global _started
    _started = True
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            process = start_helper(VERB, output=output)
        except OSError as problem:
            log.debug(f"The views are not compiled in another process: {problem}")
            yield
            return
        try:
            _send(make_task(trainer), process)
            with trainer.uncompiled_views():
                yield
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_PATIENCE * (time.monotonic() - began))
            if (status := process.poll()) is None:
                log.debug("Compiling the views in another process takes too long.")
            elif status:
                output.seek(0)
                text = output.read().strip()[-2000:]
                log.debug(f"The views were not compiled in another process (exit code {status}). {text}")
        finally:
            if process.poll() is None:
                stop_helper(process)
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()


def make_task(trainer: Trainer) -> ViewTask:
    store, feed, share = trainer.store, trainer.feed, 1.0
    if store.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(store.device)
        share = _GPU_SHARE * free / total
    return ViewTask(
        trainer.objective.plan,
        trainer.renderer.normalise,
        trainer.config.loop,
        str(store.device),
        feed.sizes[0],
        feed.accumulate,
        len(store),
        store.channels,
        store.size,
        share,
    )


def _send(task: ViewTask, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has failed, which is logged in the end
        process.stdin.write(pickle.dumps(task))
        process.stdin.flush()


def run_in_background() -> None:
    """Compile the views of the task that the starting process sends."""
    task: ViewTask = pickle.load(sys.stdin.buffer)
    become_helper()
    task.compile()
