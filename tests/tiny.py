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


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Between two state dicts. The key's part of an attention bias is left out: softmax cancels it, so its gradient is
    zero but for rounding, which Adam turns into steps of full size."""
    assert one.keys() == other.keys()
    differences = []
    for name in one:
        gap = (one[name].float() - other[name].float()).abs()
        if name.endswith("qkv.bias"):
            gap = torch.cat([gap.chunk(3)[0], gap.chunk(3)[2]])
        differences.append(gap.max().item())
    return max(differences)
