"""Cache and availability of our Triton kernels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache

import torch

from vitling.data.cache import redirect_cache
from vitling.shortage import is_out_of_memory


@cache
def set_kernel_cache(device: torch.device) -> None:
    """Keep compiled kernels where torch's compiler keeps its own, not in the user's home, which may not be writable."""
    if device.type == "cuda":
        from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

        redirect_cache("TORCHINDUCTOR_CACHE_DIR", "inductor")
        os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(device.index or 0))


def try_kernels(trial: Callable[[], object], device: torch.device) -> bool:
    """Run a trial of kernels and warn if it fails. They need Triton, a C compiler and a GPU that Triton supports."""
    try:
        with torch.cuda.device(device):
            trial()
            torch.cuda.synchronize()
    except torch.AcceleratorError:
        raise
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        reason = (str(problem).splitlines() or [type(problem).__name__])[-1]
        warnings.warn(f"Our Triton kernels do not run ({reason[:300]}); networks are slower without.", stacklevel=1)
        return False
    return True
