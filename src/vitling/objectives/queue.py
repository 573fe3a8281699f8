"""MoCo's queue: the latest keys, used as negatives in the next steps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_STATE = ("keys", "ids", "at")  # buffers, each with a twin `new_...` for what this step adds


class KeyQueue(nn.Module):
    """Unit `keys` [K, D] and the `ids` [K] of their images, -1 for the random initial keys.

    Keys that a step adds are visible from the next step on. So all passes of a step see the same queue, a step that is
    repeated (out of memory) finds it unchanged, and the backward pass never meets keys that have changed.
    """

    keys: Tensor
    ids: Tensor
    at: Tensor  # row of the next key
    new_keys: Tensor
    new_ids: Tensor
    new_at: Tensor

    def __init__(self, size: int, dim: int):
        super().__init__()
        keys = F.normalize(torch.randn(size, dim), dim=1)
        for name, value in zip(_STATE, (keys, torch.full((size,), -1), torch.zeros((), dtype=torch.int64))):
            self.register_buffer(name, value)
            self.register_buffer(f"new_{name}", value.clone(), persistent=False)

    def begin(self) -> None:
        """Discard what an aborted step added. Call this before a step."""
        for name in _STATE:
            getattr(self, f"new_{name}").copy_(getattr(self, name))

    @torch.no_grad()
    def add(self, keys: Tensor, ids: Tensor) -> None:
        """Replace the oldest keys; if there are more keys than rows, the last ones stay."""
        size = len(self.keys)
        keys, ids = keys[-size:], ids[-size:]
        rows = (self.new_at + torch.arange(len(keys), device=keys.device)) % size
        self.new_keys.index_copy_(0, rows, keys.to(self.new_keys.dtype))
        self.new_ids.index_copy_(0, rows, ids)
        self.new_at.add_(len(keys)).remainder_(size)

    def end(self) -> None:
        """Make the added keys visible. Call this after a step."""
        for name in _STATE:
            getattr(self, name).copy_(getattr(self, f"new_{name}"))

    def health(self) -> float:
        """Return sqrt(1 - |mean key|^2): 0 if all keys are equal, 1 if they are spread evenly."""
        return float((1 - self.keys.mean(0).square().sum()).clamp(min=0).sqrt())
