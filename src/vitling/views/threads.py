"""Views on CPUs: a few images at a time, each thread by itself.

So the pixels stay in a core's cache, and no operation waits for the other cores, as it does where torch splits every
operation between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor

AT_ONCE = 16  # images


def in_threads(paint: Callable[..., Tensor], seeds: Tensor, pixels: Tensor, aspect: Tensor) -> Tensor:
    """`paint(seeds, pixels, aspect)`, whose rows are view by view, put together from parts of the batch."""
    batch, threads = len(pixels), torch.get_num_threads()
    if threads == 1 or batch <= AT_ONCE:
        return paint(seeds, pixels, aspect)
    views = len(seeds) // batch
    by_view = seeds.view(views, batch)

    def part(first: int) -> Tensor:
        torch.set_num_threads(1)  # of this thread
        some = slice(first, first + AT_ONCE)
        images = paint(by_view[:, some].flatten(0, 1), pixels[some], aspect[some])
        return images.unflatten(0, (views, -1))

    try:
        parts = list(_pool(threads, os.getpid()).map(part, range(0, batch, AT_ONCE)))
    finally:
        torch.set_num_threads(threads)  # what threads started from now on begin with
    return torch.cat(parts, dim=1).flatten(0, 1)


@lru_cache(maxsize=2)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """One for each process: a fork inherits the object, but not its threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="views")
