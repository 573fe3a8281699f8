"""The worker processes of torch's compiler, which compile kernels side by side.

They take seconds to start. Until they are ready, torch compiles kernels one after the other in the main process, even
those that the workers of an earlier run have left in the cache.
"""

from __future__ import annotations

import atexit
from contextlib import suppress
from functools import cache

import torch

from vitling.data.cache import redirect_cache

_TIMEOUT = 60  # seconds


@cache
def start_workers() -> None:
    """Start the workers if there is a CUDA GPU, without waiting for them."""
    if torch.cuda.is_available():
        redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")
        from torch._inductor.async_compile import AsyncCompile

        atexit.register(
            end_workers
        )  # runs before torch's own function, which waits for workers that are still starting
        AsyncCompile.use_process_pool()  # starts them, and returns whether they are ready


def wait_for_workers() -> None:
    """Wait until the workers are ready, if they have been started, but not forever."""
    if start_workers.cache_info().currsize and torch.cuda.is_available():
        from torch._inductor.async_compile import AsyncCompile

        with suppress(TimeoutError):
            AsyncCompile.wait_pool_ready(_TIMEOUT)


def end_workers() -> None:
    """End the workers, for which Python would wait at its exit."""
    from torch._inductor import async_compile

    for pool in async_compile._pool_set:
        if (process := getattr(pool, "process", None)) is not None:
            process.kill()
