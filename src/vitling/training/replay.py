"""A training step recorded as two CUDA graphs and played: two launches, where there would be a thousand.

With a small network or a small batch the host takes longer to launch the kernels than the GPU takes to run them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.views.renderer import Views

MOST = 4  # kinds of batches
Terms = dict[str, Tensor]


class Replay:
    """For objectives that are `steady`. What is recorded reads views where they lay when it was recorded: a batch is
    played if its views lie there too, as those that are painted ahead do. Playing changes nothing but the time: where
    a recording cannot be made, that is said once and steps are taken as before."""

    def __init__(self, device: torch.device, say: Callable[[str], None]):
        self.device, self.say = device, say
        self.seen: set[tuple] = set()
        self.recordings: dict[tuple, _Recording] = {}
        self.failed = False
        self.phase = 0

    def enter(self, phase: int) -> None:
        """Steps of another phase are other steps."""
        if phase != self.phase:
            self.forget()
        self.phase = phase

    def recording(
        self,
        views: list[Views],
        numbers: np.ndarray,
        learn: Callable[[list[Views], Tensor], Terms],
        update: Callable[[], Tensor],
    ) -> _Recording | None:
        """Of a kind of batch that comes for the second time or later. `learn` sets the gradients that `update` uses;
        `numbers` is what changes from step to step besides the views."""
        key = (len(numbers), *(tensor.data_ptr() for tensor in _tensors(views)))
        if key not in self.recordings and key in self.seen and len(self.recordings) < MOST and not self.failed:
            pool = next((other.pool for other in self.recordings.values()), None)
            try:
                self.recordings[key] = _Recording(views, len(numbers), learn, update, self.device, pool)
            except Exception as problem:
                self.failed = True
                reason = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
                self.say(f"Steps cannot be recorded ({reason}); training goes on, more slowly if the batch is small.")
        if len(self.seen) > 4 * MOST:  # views that lie elsewhere each time
            self.seen.clear()
        self.seen.add(key)
        return self.recordings.get(key)

    def forget(self) -> None:
        """Gives the recordings' memory back."""
        self.recordings.clear()
        self.seen.clear()


class _Recording:
    """`learn()` and `update()` play; their results are overwritten by the next step."""

    def __init__(
        self,
        views: list[Views],
        count: int,
        learn: Callable[[list[Views], Tensor], Terms],
        update: Callable[[], Tensor],
        device: torch.device,
        pool: Any,
    ):
        self.views = views  # keeps them where they are
        self.numbers = torch.zeros(count, dtype=torch.int64, device=device)
        self.learning, self.updating = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # cuBLAS's workspaces become part of the recording: see ahead.py.
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(self.learning, pool=pool, capture_error_mode="thread_local"):
            self.terms = learn(views, self.numbers)
        self.pool = self.learning.pool()
        with torch.cuda.graph(self.updating, pool=self.pool, capture_error_mode="thread_local"):
            self.norm = update()
        torch._C._cuda_clearCublasWorkspaces()

    def learn(self, numbers: np.ndarray) -> Terms:
        self.numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        self.learning.replay()
        return self.terms

    def update(self) -> Tensor:
        self.updating.replay()
        return self.norm


def _tensors(views: list[Views]) -> list[Tensor]:
    fields = ("pixels", "partner", "lam", "boxes")
    return [tensor for view in views for name in fields if (tensor := getattr(view, name)) is not None]
