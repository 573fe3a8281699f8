"""Rendering on CPUs: each thread renders a few images from end to end.

The pixels stay in a core's cache, and no operation waits for other cores, as happens when torch splits every operation
between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 16  # images that a thread renders at a time


def render_in_threads(render: Callable[..., Tensor], seeds: Tensor, pixels: Tensor, aspect: Tensor) -> Tensor:
    """Call `render(seeds, pixels, aspect)` for chunks of the batch; rows are view by view, as in one call."""
    batch, threads = len(pixels), torch.get_num_threads()
    if threads == 1 or batch <= CHUNK:
        return render(seeds, pixels, aspect)
    views = len(seeds) // batch
    by_view = seeds.view(views, batch)

    def render_chunk(first: int) -> Tensor:
        torch.set_num_threads(1)  # for this thread only
        chunk = slice(first, first + CHUNK)
        images = render(by_view[:, chunk].flatten(0, 1), pixels[chunk], aspect[chunk])
        return images.unflatten(0, (views, -1))

    try:
        chunks = list(_get_pool(threads, os.getpid()).map(render_chunk, range(0, batch, CHUNK)))
    finally:
        torch.set_num_threads(threads)  # the default of threads that start later
    return torch.cat(chunks, dim=1).flatten(0, 1)


@lru_cache(maxsize=2)
def _get_pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Make one pool per process: a fork inherits the object, but not its threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix="views")
