"""Training steps captured as two CUDA graphs and replayed: two launches instead of a thousand.

With a small network or a small batch, the host takes longer to launch kernels than the GPU takes to run them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitling.views.renderer import Views

MAX_CAPTURES = 4  # kinds of batches
Terms = dict[str, Tensor]


class Replay:
    """Captured steps of an objective that is `capturable`. A capture reads views from the addresses they had when it
    was made, so it serves all batches whose views are stored there, as prefetched ones are. Replaying saves time and
    changes no value. If a capture fails, it warns once, and steps are run as before."""

    def __init__(self, device: torch.device, warn: Callable[[str], None]):
        self.device, self.warn = device, warn
        self.seen: set[tuple] = set()
        self.captures: dict[tuple, _CapturedStep] = {}
        self.failed = False
        self.phase = 0

    def enter(self, phase: int) -> None:
        """Forget the captures of another phase, whose steps are different."""
        if phase != self.phase:
            self.forget()
        self.phase = phase

    def get_capture(
        self,
        views: list[Views],
        inputs: np.ndarray,
        learn: Callable[[list[Views], Tensor], Terms],
        update: Callable[[], Tensor],
    ) -> _CapturedStep | None:
        """Return the capture for a kind of batch, made when the kind occurs for the second time. `learn` computes
        the gradients that `update` uses; `inputs` is what changes from step to step besides the views."""
        key = (len(inputs), *(tensor.data_ptr() for tensor in _list_tensors(views)))
        if key not in self.captures and key in self.seen and len(self.captures) < MAX_CAPTURES and not self.failed:
            pool = next((other.pool for other in self.captures.values()), None)
            try:
                self.captures[key] = _CapturedStep(views, len(inputs), learn, update, self.device, pool)
            except Exception as problem:
                self.failed = True
                end_failed_capture()
                reason = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
                self.warn(
                    f"Steps cannot be captured as CUDA graphs ({reason}); training continues, more slowly if the batch "
                    "is small."
                )
        if len(self.seen) > 4 * MAX_CAPTURES:  # the views are at a new address each time
            self.seen.clear()
        self.seen.add(key)
        return self.captures.get(key)

    def forget(self) -> None:
        """Free the captures' memory."""
        self.captures.clear()
        self.seen.clear()


class _CapturedStep:
    """Two CUDA graphs: `learn` and `update` replay them. Their results are overwritten by the next step."""

    def __init__(
        self,
        views: list[Views],
        count: int,
        learn: Callable[[list[Views], Tensor], Terms],
        update: Callable[[], Tensor],
        device: torch.device,
        pool: Any,
    ):
        self.views = views  # keeps their memory in place
        self.inputs = torch.zeros(count, dtype=torch.int64, device=device)
        self.learn_graph, self.update_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        torch._C._cuda_clearCublasWorkspaces()  # cuBLAS's workspaces become part of the capture, see prefetch.py
        with torch.cuda.graph(self.learn_graph, pool=pool, capture_error_mode="thread_local"):
            self.terms = learn(views, self.inputs)
        self.pool = self.learn_graph.pool()
        with torch.cuda.graph(self.update_graph, pool=self.pool, capture_error_mode="thread_local"):
            self.norm = update()
        torch._C._cuda_clearCublasWorkspaces()

    def learn(self, inputs: np.ndarray) -> Terms:
        self.inputs.copy_(torch.from_numpy(inputs), non_blocking=True)
        self.learn_graph.replay()
        return self.terms

    def update(self) -> Tensor:
        self.update_graph.replay()
        return self.norm


def end_failed_capture() -> None:
    """Tell torch's random generator that no capture is under way; one that failed leaves it unusable outside of
    captures. A capture of nothing, which succeeds, resets it."""
    with suppress(RuntimeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            pass


def _list_tensors(views: list[Views]) -> list[Tensor]:
    optional = (getattr(view, name) for view in views for name in ("pixels", "partner", "lam", "boxes"))
    return [tensor for tensor in optional if tensor is not None]
