"""Convolutions with large strides, computed as matrix products of patches on GPUs.

cuDNN runs a convolution of three channels through layout changes and slow kernels: at 112 px the first one of PVTv2
took a sixth of the training step. On CPUs the convolution is kept, so outputs are bit-identical to timm's. Parameters
keep their names and shapes.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from vitling.backbones.position import Grid

ALIGNMENT = 8  # values in a row of a bf16 matrix: tensor cores need rows of a multiple of 16 bytes
MAX_STEM_CHANNELS = 4
MIN_STEM_STRIDE = 4  # 7 x 7 patches with a stride of 4 hold three times the image


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


class StemProjection(nn.Module):
    """A convolution of the image whose patches overlap, with the same parameters. Gradients of the image are slow."""

    def __init__(self, convolution: nn.Conv2d):
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.stride, self.padding = convolution.stride, cast(Grid, convolution.padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) if x.is_cuda else F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def product(self, x: Tensor) -> Tensor:
        """Project images [B, C, H, W] to [B, D, rows, columns]."""
        (height, width), (down, right) = self.weight.shape[2:], self.stride
        rows, columns = self.padding
        x = F.pad(x, (columns, columns, rows, rows))
        patches = x.unfold(2, height, down).unfold(3, width, right).permute(0, 2, 3, 1, 4, 5).flatten(3)
        missing = -patches.shape[3] % ALIGNMENT
        weight = F.pad(self.weight.flatten(1), (0, missing))
        return F.linear(F.pad(patches, (0, missing)), weight, self.bias).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, stride={self.stride}, padding={self.padding}"


def replace_patch_convolutions(model: nn.Module) -> None:
    """Replace in place the convolutions with patches that do not overlap, and those of the image that hardly do."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv2d) and _is_plain(child):
                if _is_patchwise(child):
                    setattr(parent, name, PatchProjection(child))
                elif _is_stem(child):
                    setattr(parent, name, StemProjection(child))


def _is_plain(convolution: nn.Conv2d) -> bool:
    whole = not isinstance(convolution.padding, str) and convolution.padding_mode == "zeros"
    return whole and convolution.groups == 1 and convolution.dilation == (1, 1)


def _is_patchwise(convolution: nn.Conv2d) -> bool:
    no_overlap = convolution.kernel_size == convolution.stride and convolution.padding == (0, 0)
    return no_overlap and max(convolution.kernel_size) > 1


def _is_stem(convolution: nn.Conv2d) -> bool:
    return convolution.in_channels <= MAX_STEM_CHANNELS and min(convolution.stride) >= MIN_STEM_STRIDE
