"""Stochastic depth with its rate as a tensor, so that blocks that differ only in their rate compile to one graph."""

from __future__ import annotations

import torch
from timm.layers import DropPath
from torch import Tensor, nn


class StochasticDepth(nn.Module):
    """timm's DropPath: drop each image's branch with `drop_prob` and scale up the others."""

    keep: Tensor

    def __init__(self, drop_prob: float):
        super().__init__()
        self.drop_prob = drop_prob  # for reading only: the compiler would make a graph for each value
        self.register_buffer("keep", torch.tensor(1.0 - drop_prob), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) < self.keep
        return x * (kept / self.keep).to(x.dtype)

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob:.3f}"


def replace_drop_paths(model: nn.Module) -> None:
    """Replace timm's DropPath in place, and the identity that stands for a rate of 0, so that all blocks are alike."""
    if not any(isinstance(module, DropPath) and module.drop_prob for module in model.modules()):
        return
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, DropPath | nn.Identity) and name.startswith("drop_path"):
                setattr(parent, name, StochasticDepth(float(getattr(child, "drop_prob", 0.0))))
