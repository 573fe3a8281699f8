"""Blocks that are alike share a compiled graph, which makes compiling fast."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from vitling.backbones import create

# input size and kinds of blocks: one per stage; in Swin two (shifted and not), except in the last stage
KINDS = {
    "vit_micro_patch4_32": (32, 1),
    "pvt_v2_b0": (64, 4),
    "swin_tiny_patch4_window7_224": (224, 7),
    "t2t_vit_7": (32, 2),
    "cvt_13": (32, 3),
    "cvt_tiny": (32, 4),
    "pvt_small": (32, 4),
    "vil_tiny": (64, 4),
}


@pytest.mark.parametrize("name", KINDS)
def test_blocks_of_one_kind_are_one_graph(name):
    size, kinds = KINDS[name]
    torch._dynamo.reset()
    backbone, counter = create(name, size, drop_path=0.1, seed=0).train(), CompileCounter()
    for block in backbone.blocks():
        block.compile(dynamic=False, backend=counter)
    with torch.no_grad():
        backbone(torch.zeros(2, 3, size, size))
    torch._dynamo.reset()
    assert counter.frame_count == kinds


@pytest.mark.parametrize("name", [*KINDS, "resnet50"])
def test_blocks_hold_nearly_all_weights(name):
    backbone = create(name)
    held = sum(p.numel() for block in backbone.blocks() for p in block.parameters())
    assert held > 0.8 * sum(p.numel() for p in backbone.parameters())
