"""Views of the next batch, rendered on their own CUDA stream while the current step finishes.

Rendering takes a hundred small kernel launches per batch. Captured as a CUDA graph, it takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vitling.training.feed import LoadedBatch, MicroBatch
from vitling.training.replay import end_failed_capture
from vitling.views.plan import Group
from vitling.views.renderer import Indices, Renderer, Views

MAX_CAPTURES = 4  # kinds of batches; each capture keeps its views in memory


class ViewPrefetcher:
    """Renders views ahead of their batch, which saves time and changes no value. If a capture fails, it
    warns once, and views are rendered when their batch comes."""

    def __init__(self, renderer: Renderer, device: torch.device, warn: Callable[[str], None]):
        self.renderer, self.warn = renderer, warn
        self.stream = torch.cuda.Stream(device)
        self.captures: dict[tuple, _CapturedRendering] = {}
        self.failed = False

    def prepare(self, loaded: LoadedBatch) -> None:
        """Start rendering once the GPU has finished the work queued so far. Call this after the backward pass, the last
        to read the current views: the new ones overwrite them, while the optimiser's small kernels leave most of the
        GPU free."""
        for micro in loaded.micro_batches:
            indices = micro.view_batch.indices()
            capture = self._get_capture(micro, indices)
            if capture is not None and not any(other.views is capture.views for other in loaded.micro_batches):
                micro.views = capture.replay(indices, micro.pixels, micro.aspect, self.stream)

    def forget(self) -> None:
        """Free the captures' memory, and with it all prefetched views."""
        self.captures.clear()

    def get_views(self, micro: MicroBatch) -> list[Views] | None:
        if micro.views is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        return micro.views

    def _get_capture(self, micro: MicroBatch, indices: list[Indices[np.ndarray]]) -> _CapturedRendering | None:
        groups = micro.view_batch.groups
        key = (groups, micro.pixels.shape, tuple(len(array) for group in indices for array in group))
        if key not in self.captures and len(self.captures) < MAX_CAPTURES and not self.failed:
            try:
                with torch.compiler.set_stance("default"):  # the current batch may be trained uncompiled
                    capture = _CapturedRendering(
                        self.renderer, groups, indices, micro.pixels, micro.aspect, self.stream
                    )
            except Exception as problem:
                self.failed = True
                end_failed_capture()
                reason = (str(problem).splitlines() or [type(problem).__name__])[0][:200]
                self.warn(f"Views cannot be prefetched ({reason}); training continues, a little more slowly.")
            else:
                self.captures[key] = capture
        return self.captures.get(key)


class _CapturedRendering:
    """A CUDA graph that renders views from inputs in fixed places."""

    def __init__(
        self,
        renderer: Renderer,
        groups: Sequence[Group],
        indices: list[Indices[np.ndarray]],
        pixels: Tensor,
        aspect: Tensor,
        stream: torch.cuda.Stream,
    ):
        self.lengths = [[len(array) for array in group] for group in indices]
        self.flat_indices = torch.empty(sum(map(sum, self.lengths)), dtype=torch.int64, device=pixels.device)
        self.pixels, self.aspect = torch.empty_like(pixels), torch.empty_like(aspect)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._fill(indices, pixels, aspect)
            renderer.render(groups, self._split_indices(), self.pixels, self.aspect)  # compiles, and fills caches
        self.graph = torch.cuda.CUDAGraph()
        # cuBLAS's workspace becomes part of the capture. It must be the capture's own, not one that is freed when
        # another part of the program clears its workspaces.
        torch._C._cuda_clearCublasWorkspaces()
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.views = renderer.render(groups, self._split_indices(), self.pixels, self.aspect)
        torch._C._cuda_clearCublasWorkspaces()

    def replay(
        self, indices: list[Indices[np.ndarray]], pixels: Tensor, aspect: Tensor, stream: torch.cuda.Stream
    ) -> list[Views]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._fill(indices, pixels, aspect)
            self.graph.replay()
        return self.views

    def _fill(self, indices: list[Indices[np.ndarray]], pixels: Tensor, aspect: Tensor) -> None:
        flat = np.concatenate([array for group in indices for array in group])
        self.flat_indices.copy_(torch.from_numpy(flat).pin_memory(), non_blocking=True)
        self.pixels.copy_(pixels)
        self.aspect.copy_(aspect)

    def _split_indices(self) -> list[Indices[Tensor]]:
        groups = self.flat_indices.split([sum(lengths) for lengths in self.lengths])
        return [group.split(lengths) for group, lengths in zip(groups, self.lengths)]
