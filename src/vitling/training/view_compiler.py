"""The views of a run as tasks for a compile server."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vitling.data.batches import slice_batch
from vitling.training.compilation import compile_function
from vitling.training.config import LoopConfig
from vitling.training.precision import choose_precision, set_deterministic
from vitling.training.trainer import Trainer
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.plan import Plan
from vitling.views.renderer import FunctionCache, Normaliser, Renderer

PROCESSES = 6  # that share the functions of the views; each traces all of them


@dataclass(frozen=True)
class ViewTask:
    """Everything that the compiled code of a run's views depends on, and the part of them to compile."""

    plan: Plan
    normalise: Normaliser
    loop: LoopConfig
    device: str
    batch: int
    accumulate: int
    channels: int
    side: int  # of the stored pixels
    part: int = 0
    parts: int = 1
    compiled: bool = True

    def run(self) -> None:
        """Compile every `parts`-th function, and only trace the others, which may do other things uncompiled."""
        set_deterministic(self.loop.deterministic)
        dtype = choose_precision(self.loop, torch.device(self.device)).dtype
        self.render(Renderer(self.normalise, FunctionCache(self._make_compiler()), dtype))

    def _make_compiler(self) -> Callable[[Callable], Callable]:
        numbers = itertools.count()
        return lambda bound: compile_function(bound, traced_only=next(numbers) % self.parts != self.part)

    def render(self, renderer: Renderer) -> None:
        """Render a batch of each kind."""
        (local, _), *_ = slice_batch(self.batch, 0, 1, self.accumulate)
        for epoch in range(2):  # epochs may take turns with two kinds of mixing
            key = BatchKey(0, epoch, 0, np.arange(self.batch), self.batch)
            batch = ViewBatch(self.plan, key, local)
            shape = (len(batch.instances), self.channels, self.side, self.side)
            pixels = torch.zeros(shape, dtype=torch.uint8, device=self.device)
            batch.render(pixels, torch.ones(shape[0], device=self.device), renderer)


def make_view_task(trainer: Trainer, part: int = 0, parts: int = 1) -> ViewTask:
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
        part,
        parts,
    )


def pack_views(trainer: Trainer) -> list[bytes]:
    """Pickle the tasks of a run's views."""
    return [pickle.dumps(make_view_task(trainer, part, PROCESSES)) for part in range(PROCESSES)]
