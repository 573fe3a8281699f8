"""Time each operation of the views."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from vitling.papers.measure import make_store
from vitling.training.compilation import compile_function
from vitling.training.feed import LoadedBatch, MicroBatch
from vitling.training.pace import WARMUP_STEPS, synchronise
from vitling.training.prefetch import ViewPrefetcher
from vitling.views import (
    BatchKey,
    Blur,
    Flip,
    Grey,
    Group,
    Jitter,
    Mix,
    Normaliser,
    Plan,
    Policy,
    RandAugment,
    Renderer,
    Rotate,
    Solarise,
    ViewBatch,
)
from vitling.views.renderer import FunctionCache

OPERATIONS: dict[str, tuple[Policy, Mix]] = {
    "crop": (Policy(steps=()), Mix()),
    "crop, bilinear": (Policy(steps=(), filter="bilinear"), Mix()),
    "flip, first": (Policy(steps=(Flip(),)), Mix()),
    "flip, later": (Policy(steps=(Grey(0.0), Flip())), Mix()),
    "jitter": (Policy(steps=(Jitter(0.8, 0.8, 0.8, 0.2, 0.8),)), Mix()),
    "jitter, grey, solarise": (Policy(steps=(Jitter(0.8, 0.8, 0.8, 0.2, 0.8), Grey(0.2), Solarise(0.2))), Mix()),
    "blur": (Policy(steps=(Blur(0.5),)), Mix()),
    "rotate": (Policy(steps=(Rotate(30.0),)), Mix()),
    "RandAugment, timm": (Policy(steps=(RandAugment("timm"),)), Mix()),
    "RandAugment, UDA": (Policy(steps=(RandAugment("uda"),)), Mix()),
    "erasing": (Policy(steps=(), erase=0.25), Mix()),
    "mixup or CutMix": (Policy(steps=()), Mix(mixup=0.8, cutmix=1.0)),
}


def time_operations(
    device: torch.device, compiled: bool, batch: int, size: int, steps: int
) -> Iterator[dict[str, Any]]:
    """Yield the milliseconds that each operation adds to a plain crop, per batch."""
    store = make_store(batch, Group(size).store_side, device)
    normalise = Normaliser(store.mean, store.std)
    plain = 0.0
    for name, (policy, mix) in OPERATIONS.items():
        view_batch = ViewBatch(
            Plan((Group(size, policy=policy, mix=mix),)), BatchKey(0, 0, 0, np.arange(batch), batch), np.arange(batch)
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        renderer = Renderer(normalise, FunctionCache(compile_function) if compiled else None, dtype)
        loaded = LoadedBatch(view_batch.key, 1, [MicroBatch(1.0, (), view_batch, *store.fetch(view_batch.instances))])
        milliseconds = _time_rendering(renderer, loaded, steps, device, compiled)
        if name == "crop":
            plain = milliseconds
        added = milliseconds if name.startswith("crop") else milliseconds - plain
        print({"operation": name, "milliseconds": round(added, 3)}, flush=True)
        yield {"operation": name, "batch": batch, "size": size, "milliseconds": added}


def _time_rendering(renderer: Renderer, loaded: LoadedBatch, steps: int, device: torch.device, compiled: bool) -> float:
    prefetcher = ViewPrefetcher(renderer, device, print) if compiled and device.type == "cuda" else None

    def render(count: int) -> None:
        for _ in range(count):
            if prefetcher:
                loaded.micro_batches[0].views = None
                prefetcher.prepare(loaded)
                prefetcher.get_views(loaded.micro_batches[0])
            else:
                loaded.micro_batches[0].view_batch.render(
                    loaded.micro_batches[0].pixels, loaded.micro_batches[0].aspect, renderer
                )

    render(WARMUP_STEPS)
    synchronise(device)
    started = time.perf_counter()
    render(steps)
    synchronise(device)
    return (time.perf_counter() - started) / steps * 1000
