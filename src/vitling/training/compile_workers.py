"""The worker processes of torch's compiler, which compile kernels side by side.

They take seconds to start. Until they are ready, torch compiles kernels one after the other in the main process, even
those that the workers of an earlier run have left in the cache. Workers only save time: whatever goes wrong with them
here is left to the first compilation, which reports it or does without them.
"""

from __future__ import annotations

import atexit
from contextlib import suppress

import torch

from vitling.data.cache import redirect_cache

MAX_WAIT_SECONDS = 60  # two cores take 6 s to start them; without them, compiling takes longer but works

_started = False


def start_workers() -> None:
    """Start the workers if there is a CUDA GPU, without waiting for them."""
    global _started
    if _started or not torch.cuda.is_available():
        return
    _started = True
    redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")
    with suppress(Exception):
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.use_process_pool()  # starts them, and returns whether they are ready
        # Functions run in reverse order at exit, so this one before torch's, which waits for the workers.
        atexit.register(end_workers)


def wait_for_workers() -> None:
    """Wait until the workers are ready, if they have been started, but not forever."""
    if _started:
        with suppress(Exception):
            from torch._inductor.async_compile import AsyncCompile

            AsyncCompile.wait_pool_ready(MAX_WAIT_SECONDS)


def end_workers() -> None:
    """End the workers, for which Python would wait at its exit."""
    from torch._inductor import async_compile

    for pool in async_compile._pool_set:
        if (process := getattr(pool, "process", None)) is not None:
            process.kill()
