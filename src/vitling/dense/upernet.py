"""UPerNet (Xiao et al., 2018): pyramid pooling, a feature pyramid and their fusion; an FCN as auxiliary head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BINS = (1, 2, 3, 6)  # of pyramid pooling
AUXILIARY_STAGE = 2  # stride 16
DROPOUT = 0.1  # before the classifiers, as in mmsegmentation


def conv_block(width_in: int, width: int, kernel: int = 3, norm: bool = True) -> nn.Module:
    """Make a convolution, batch norm and ReLU."""
    layers = [nn.Conv2d(width_in, width, kernel, padding=kernel // 2, bias=not norm)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU())


class PyramidPooling(nn.Module):
    """Averages over grids of several sizes, each reduced and enlarged again, beside the map itself."""

    def __init__(self, width_in: int, width: int):
        super().__init__()
        # one average has no batch statistics if a batch that ran out of memory is split into single images
        self.branches = nn.ModuleList(conv_block(width_in, width, 1, norm=bins > 1) for bins in BINS)
        self.fuse = conv_block(width_in + len(BINS) * width, width)

    def forward(self, maps: Tensor) -> Tensor:
        pooled = [branch(average_bins(maps, bins)) for bins, branch in zip(BINS, self.branches)]
        return self.fuse(torch.cat([maps, *(resize(some, maps) for some in pooled)], dim=1))


class UPerNet(nn.Module):
    """Logits at stride 4 from four maps of strides 4 to 32."""

    def __init__(self, widths: list[int], classes: int, width: int = 512):
        super().__init__()
        self.laterals = nn.ModuleList(conv_block(some, width, 1) for some in widths[:-1])
        self.pooling = PyramidPooling(widths[-1], width)
        self.smooth = nn.ModuleList(conv_block(width, width) for _ in widths[:-1])
        self.fuse = conv_block(len(widths) * width, width)
        self.classify = make_classifier(width, classes)

    def forward(self, maps: list[Tensor]) -> Tensor:
        levels = [lateral(some) for lateral, some in zip(self.laterals, maps)]
        levels.append(self.pooling(maps[-1]))
        for i in reversed(range(len(levels) - 1)):
            levels[i] = levels[i] + resize(levels[i + 1], levels[i])
        smooth = [conv(level) for conv, level in zip(self.smooth, levels)]
        enlarged = [resize(level, levels[0]) for level in (*smooth, levels[-1])]
        return self.classify(self.fuse(torch.cat(enlarged, dim=1)))


class AuxiliaryHead(nn.Module):
    """Logits at stride 16, from one of the four maps."""

    def __init__(self, widths: list[int], classes: int, width: int = 256):
        super().__init__()
        self.conv = conv_block(widths[AUXILIARY_STAGE], width)
        self.classify = make_classifier(width, classes)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return self.classify(self.conv(maps[AUXILIARY_STAGE]))


def make_classifier(width: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Dropout2d(DROPOUT), nn.Conv2d(width, classes, 1))


def resize(maps: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(maps, size=like.shape[-2:], mode="bilinear", align_corners=False)


def average_bins(maps: Tensor, bins: int) -> Tensor:
    """Average over bins x bins cells as adaptive_avg_pool2d does, by two products: its gradient on GPUs is not
    deterministic."""
    y, x = (_make_bins(side, bins, maps.device).to(maps.dtype) for side in maps.shape[-2:])
    return y @ maps @ x.T


def _make_bins(side: int, bins: int, device: torch.device) -> Tensor:
    """Make the matrix [bins, side] of averages; neighbouring bins overlap where they do not divide the side."""
    edges = torch.arange(bins, device=device)
    first, last = edges * side // bins, ((edges + 1) * side + bins - 1) // bins
    place = torch.arange(side, device=device)
    member = ((place >= first[:, None]) & (place < last[:, None])).float()
    return member / member.sum(dim=1, keepdim=True)
