"""Batches for the loop: which images, which part of them this process holds, and their pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitling.data.batches import (
    Remainder,
    batch_sizes,
    count_images_per_process,
    epoch_order,
    local_slices,
    split_batches,
)
from vitling.data.store import Store
from vitling.training.config import FitConfig
from vitling.training.precision import choose_compile
from vitling.training.processes import Processes
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.config import Plan
from vitling.views.renderer import Views


def choose_batch_sizes(config: FitConfig, images: int, device: torch.device) -> list[int]:
    """Of an epoch."""
    loop = config.loop
    remainder: Remainder = "drop" if loop.drop_last else "keep"
    usual = batch_sizes(images, config.batch, remainder)
    compiled = choose_compile(loop, device, config.epochs * len(usual)) != "off"
    if loop.even == "on" or (loop.even == "auto" and compiled and not loop.drop_last):
        return batch_sizes(images, config.batch, "even", config.optim.accumulate)
    return usual


@dataclass
class MicroBatch:
    """A slice of a batch: its share in the mean over the global batch, how much of the pass each process has (`Batch`),
    and the pixels its views are drawn from."""

    weight: float
    held: tuple[int, ...]
    view_batch: ViewBatch
    pixels: Tensor
    aspect: Tensor
    views: list[Views] | None = None  # if they were painted ahead


@dataclass
class LoadedBatch:
    key: BatchKey
    accumulate: int
    micro_batches: list[MicroBatch]


class Feed:
    """`accumulate`, the passes that a batch is trained in, may change on the way; `waited` is the time that the loop
    stood still for data."""

    def __init__(self, store: Store, plan: Plan, config: FitConfig, processes: Processes):
        self.store, self.plan, self.config, self.processes = store, plan, config, processes
        self.sizes = choose_batch_sizes(config, len(store), store.device)
        self.accumulate = config.optim.accumulate
        self.waited = 0.0

    def batches(self, epoch: int, done: int) -> Iterator[LoadedBatch]:
        """The rest of an epoch after `done` steps of the run; each batch is loaded while the one before it trains,
        where loading takes time."""
        keys = self._keys(epoch, done)
        if self.store.placement == "device" or (self.store.device.type == "cpu" and self.store.placement == "host"):
            for key in keys:
                yield self.load(key)
            return
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self.load, keys[0])
            for following in keys[1:]:
                loaded = self._wait_for(ahead.result)
                ahead = pool.submit(self.load, following)
                yield loaded
            yield self._wait_for(ahead.result)

    def load(self, key: BatchKey) -> LoadedBatch:
        accumulate, world, parts = self.accumulate, self.processes.world, []
        slices = local_slices(len(key.ids), self.processes.rank, world, accumulate)
        several = count_images_per_process(len(key.ids), world, accumulate) if world > 1 else [()] * len(slices)
        for (local, weight), held in zip(slices, several, strict=True):
            view_batch = ViewBatch(self.plan, key, local)
            parts.append(MicroBatch(weight, held, view_batch, *self.store.fetch(view_batch.instances)))
        return LoadedBatch(key, accumulate, parts)

    def _keys(self, epoch: int, done: int) -> list[BatchKey]:
        n, loop = len(self.store), self.config.loop
        classes = self.store.dataset.labels if loop.sampler == "balanced" else None
        order = epoch_order(n, self.config.seed, epoch, classes)
        return [
            BatchKey(self.config.seed, epoch, step, ids, n)
            for step, ids in enumerate(split_batches(order, self.sizes))
            if epoch * len(self.sizes) + step >= done
        ]

    def _wait_for(self, result: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        value = result()
        self.waited += time.perf_counter() - started
        return value
