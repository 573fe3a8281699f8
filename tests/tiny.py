"""A ViT of 26,000 parameters, for tests that train."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vitling.backbones.backbone import Backbone, build


def tiny_backbone(size: int = 16, drop_path: float = 0.0, channels: int = 3) -> Backbone:
    arguments = {
        "img_size": size,
        "patch_size": 4,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "in_chans": channels,
        "drop_path_rate": drop_path,
    }
    return build("vit_test", "vit_tiny_patch16_224", arguments, size)


def relative_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """Return the distance of two trained state dicts, relative to their distance from the start.

    The key bias of attention is ignored: softmax cancels it, so its gradient is only rounding noise, which Adam scales
    up to full steps.
    """
    difference = torch.cat([_flatten(name, one[name] - other[name]) for name in one])
    distance = torch.cat([_flatten(name, one[name] - start[name]) for name in one])
    return float(difference.norm() / distance.norm())


def _flatten(name: str, difference: Tensor) -> Tensor:
    if name.endswith("qkv.bias"):
        difference = torch.cat([difference.chunk(3)[0], difference.chunk(3)[2]])
    return difference.float().flatten().cpu()


class Stop(Exception):
    pass


class StopAfter:
    """Watcher with a score that falls; it stops the run in the epoch after this one."""

    every = 1

    def __init__(self, epoch: int):
        self.epoch = epoch

    def __call__(self, moment):
        if moment.epoch > self.epoch:
            raise Stop
        return {"score": 1 / moment.epoch}
