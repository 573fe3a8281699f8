"""Convolutions with non-overlapping patches, computed as matrix products on GPUs.

cuDNN runs such a convolution of three channels through layout changes and a slow kernel for the weight gradient. On
CPUs the convolution is kept, so outputs are bit-identical to timm's. Parameters keep their names and shapes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PatchProjection(nn.Module):
    """A patch-wise convolution with the same parameters."""

    def __init__(self, convolution: nn.Conv2d):
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.side = convolution.kernel_size

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) if x.is_cuda else F.conv2d(x, self.weight, self.bias, self.side)

    def product(self, x: Tensor) -> Tensor:
        """Project images [B, C, H, W] to [B, D, H / side, W / side]; the remainder below and to the right is unused."""
        height, width = self.side
        rows, columns = x.shape[-2] // height, x.shape[-1] // width
        x = x[..., : rows * height, : columns * width]
        patches = x.unflatten(3, (columns, width)).unflatten(2, (rows, height)).permute(0, 2, 4, 1, 3, 5).flatten(3)
        return F.linear(patches, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, side={self.side}"


def replace_patch_convolutions(model: nn.Module) -> None:
    """Replace patch-wise convolutions in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv2d) and _is_patchwise(child):
                setattr(parent, name, PatchProjection(child))


def _is_patchwise(convolution: nn.Conv2d) -> bool:
    plain = convolution.groups == 1 and convolution.padding in ((0, 0), "valid") and convolution.dilation == (1, 1)
    return plain and convolution.kernel_size == convolution.stride and max(convolution.kernel_size) > 1
