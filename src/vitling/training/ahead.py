"""The views of the next batch, painted on a stream of their own while this batch's step comes to its end.

Painting is a hundred small launches a batch. It is recorded as a CUDA graph and then played: one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vitling.training.feed import LoadedBatch, MicroBatch
from vitling.views.config import Group
from vitling.views.renderer import Indices, Renderer, Views

MOST = 4  # kinds of batches; each recording keeps its views in memory


class Ahead:
    """Painting ahead saves time and changes nothing: where a recording cannot be made, for want of memory or for
    another reason, that is said once and the views are painted when their batch comes."""

    def __init__(self, renderer: Renderer, device: torch.device, say: Callable[[str], None]):
        self.renderer, self.say = renderer, say
        self.stream = torch.cuda.Stream(device)
        self.recordings: dict[tuple, _Recording] = {}
        self.failed = False

    def prepare(self, loaded: LoadedBatch) -> None:
        """Begins to paint when the GPU has done what it was given so far. Call it after the backward pass, which is the
        last to look at the views of this batch: the new ones take their place, while the optimiser's small kernels
        leave most of the GPU free."""
        for part in loaded.micro_batches:
            order = part.view_batch.indices()
            recording = self._recording(part, order)
            if recording is not None and not any(other.views is recording.views for other in loaded.micro_batches):
                part.views = recording.play(order, part.pixels, part.aspect, self.stream)

    def forget(self) -> None:
        """Gives the recordings' memory back. What was painted ahead is gone with it."""
        self.recordings.clear()

    def get_views(self, part: MicroBatch) -> list[Views] | None:
        if part.views is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        return part.views

    def _recording(self, part: MicroBatch, order: list[Indices[np.ndarray]]) -> _Recording | None:
        groups = part.view_batch.groups
        key = (groups, part.pixels.shape, tuple(len(array) for parts in order for array in parts))
        if key not in self.recordings and len(self.recordings) < MOST and not self.failed:
            try:
                with torch.compiler.set_stance("default"):  # the batch before this one may be trained without graphs
                    recording = _Recording(self.renderer, groups, order, part.pixels, part.aspect, self.stream)
            except Exception as problem:
                self.failed = True
                reason = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
                self.say(f"Views cannot be painted ahead ({reason}); training goes on, a little more slowly.")
            else:
                self.recordings[key] = recording
        return self.recordings.get(key)


class _Recording:
    def __init__(
        self,
        renderer: Renderer,
        groups: Sequence[Group],
        order: list[Indices[np.ndarray]],
        pixels: Tensor,
        aspect: Tensor,
        stream: torch.cuda.Stream,
    ):
        self.lengths = [[len(array) for array in parts] for parts in order]
        self.numbers = torch.empty(sum(map(sum, self.lengths)), dtype=torch.int64, device=pixels.device)
        self.pixels, self.aspect = torch.empty_like(pixels), torch.empty_like(aspect)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._fill(order, pixels, aspect)
            renderer.render(groups, self._order(), self.pixels, self.aspect)  # compiles, and fills caches
        self.graph = torch.cuda.CUDAGraph()
        # cuBLAS's workspace becomes part of the recording: it must be the recording's own, not one that is given back
        # when somebody else clears theirs.
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.views = renderer.render(groups, self._order(), self.pixels, self.aspect)
        torch._C._cuda_clearCublasWorkspaces()

    def play(
        self, order: list[Indices[np.ndarray]], pixels: Tensor, aspect: Tensor, stream: torch.cuda.Stream
    ) -> list[Views]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._fill(order, pixels, aspect)
            self.graph.replay()
        return self.views

    def _fill(self, order: list[Indices[np.ndarray]], pixels: Tensor, aspect: Tensor) -> None:
        flat = np.concatenate([array for parts in order for array in parts])
        self.numbers.copy_(torch.from_numpy(flat).pin_memory(), non_blocking=True)
        self.pixels.copy_(pixels)
        self.aspect.copy_(aspect)

    def _order(self) -> list[Indices[Tensor]]:
        parts = self.numbers.split([sum(lengths) for lengths in self.lengths])
        return [part.split(lengths) for part, lengths in zip(parts, self.lengths)]
