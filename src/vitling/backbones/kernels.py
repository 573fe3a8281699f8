"""Cache of our Triton kernels, and trials that decide whether they are used."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

from vitling.data.cache import redirect_cache
from vitling.shortage import is_out_of_memory

TOLERANCE = 0.02  # relative; in bf16, gradients computed by torch are off by up to 0.0035, ours by up to 0.004
ZERO = 1e-3  # norm up to which gradients that are 0, such as those of a single key, may be off


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
    except torch.AcceleratorError:
        raise
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        reason = (str(problem).splitlines() or [type(problem).__name__])[-1]
        warnings.warn(f"Our Triton kernels cannot be used ({reason[:300]}); networks are slower without.", stacklevel=1)
        return False
    return True


def draw_inputs(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Draw a trial's inputs on the host."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, device="cpu").to(dtype) for shape in shapes]


def check_outputs(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    """Raise RuntimeError if the kernels' outputs are not what torch computes on the host, NaN included."""
    for ours, theirs in zip(found, expected, strict=True):
        distance = (ours.cpu().float() - theirs.float()).norm()
        if not distance <= TOLERANCE * theirs.float().norm() + ZERO:
            raise RuntimeError("wrong results")
