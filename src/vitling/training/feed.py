"""Batches for the loop: their images, the slice that this process trains, and their pixels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from vitling.data.batches import (
    Remainder,
    compute_batch_sizes,
    count_images_per_process,
    draw_epoch_order,
    slice_batch,
    split_batches,
)
from vitling.data.store import Store
from vitling.training.compilation import choose_compile
from vitling.training.config import FitConfig
from vitling.training.processes import Processes
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.plan import Plan
from vitling.views.renderer import Views


def choose_batch_sizes(config: FitConfig, images: int, device: torch.device, least: int = 1) -> list[int]:
    """Return the sizes of an epoch's batches, which may have fewer or more images than the dataset.

    A last batch of fewer than `least` images is left out; each epoch leaves out different ones.
    """
    loop = config.loop
    remainder: Remainder = "drop" if loop.drop_last else "keep"
    usual = compute_batch_sizes(images, config.batch, remainder)
    compiled = choose_compile(loop, device, config.epochs * len(usual)) != "off"
    if loop.even == "on" or (loop.even == "auto" and compiled and not loop.drop_last):
        usual = compute_batch_sizes(images, config.batch, "even", config.optim.accumulate)
    if usual[-1] < least and len(usual) > 1 and config.batch >= least:
        usual = usual[:-1]
    return usual[: max(1, round(loop.epoch_part * len(usual)))]


@dataclass
class MicroBatch:
    """The part of a batch that one process trains in one pass."""

    weight: float  # its share of the mean over the global batch
    images_per_process: tuple[int, ...]  # images of this pass in each process, see `Batch`
    view_batch: ViewBatch
    pixels: Tensor
    aspect: Tensor
    views: list[Views] | None = None  # if they were prefetched


@dataclass
class LoadedBatch:
    """A batch of this process, with its pixels."""

    key: BatchKey
    accumulate: int
    micro_batches: list[MicroBatch]


class Feed:
    """Source of batches. `accumulate`, the number of passes per batch, may change during a run; `waited` counts the
    seconds that the loop waited for data."""

    def __init__(self, store: Store, plan: Plan, config: FitConfig, processes: Processes, least: int = 1):
        self.store, self.plan, self.config, self.processes = store, plan, config, processes
        self.sizes = choose_batch_sizes(config, len(store), store.device, least)
        self.accumulate = config.optim.accumulate
        self.waited = 0.0

    def batches(self, epoch: int, done: int) -> Iterator[LoadedBatch]:
        """Yield the rest of an epoch after `done` steps of the run. Unless the pixels are in memory already, each batch
        is loaded while the one before it trains."""
        keys = self._keys(epoch, done)
        if self.store.placement == "device" or (self.store.device.type == "cpu" and self.store.placement == "host"):
            for key in keys:
                yield self.load(key)
            return
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self.load, keys[0])
            for following in keys[1:]:
                loaded = self._wait_for(ahead)
                ahead = pool.submit(self.load, following)
                yield loaded
            yield self._wait_for(ahead)

    def load(self, key: BatchKey) -> LoadedBatch:
        accumulate, world = self.accumulate, self.processes.world
        slices = slice_batch(len(key.ids), self.processes.rank, world, accumulate)
        counts = count_images_per_process(len(key.ids), world, accumulate) if world > 1 else [()] * len(slices)
        micro_batches = []
        for (local, weight), shared in zip(slices, counts, strict=True):
            view_batch = ViewBatch(self.plan, key, local)
            micro_batches.append(MicroBatch(weight, shared, view_batch, *self.store.fetch(view_batch.instances)))
        return LoadedBatch(key, accumulate, micro_batches)

    def _keys(self, epoch: int, done: int) -> list[BatchKey]:
        n, loop = len(self.store), self.config.loop
        classes = self.store.dataset.labels if loop.sampler == "balanced" else None
        order = draw_epoch_order(n, self.config.seed, epoch, classes, sum(self.sizes))
        return [
            BatchKey(self.config.seed, epoch, step, ids, n)
            for step, ids in enumerate(split_batches(order, self.sizes))
            if epoch * len(self.sizes) + step >= done
        ]

    def _wait_for(self, ahead: Future[LoadedBatch]) -> LoadedBatch:
        began = time.perf_counter()
        loaded = ahead.result()
        self.waited += time.perf_counter() - began
        return loaded
