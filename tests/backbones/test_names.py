from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vitling.backbones import create, list_backbones
from vitling.errors import UserError

# parameters without a head, counted in the released code
MEASURED = {
    "swin_tiny_patch4_window7_224": 27_519_354,
    "swin_small_patch4_window7_224": 48_837_258,
    "swin_base_patch4_window7_224": 86_743_224,
    "swin_tiny_patch4_window7_224.window14": 27_569_754,
    "swin_small_patch4_window7_224.window14": 48_968_298,
    "swin_base_patch4_window7_224.window14": 86_917_944,
    "cvt_tiny": 29_303_616,  # section 2.4
    "vil_tiny": 27_569_352,
    "vil_tiny_paper": 27_534_552,
    "pvt_small": 24_485_864 - 513 * 1000,  # Wang et al. 2021, Table 2: 24.5 M
    "pvt_v2_b0": 3_409_760,
    "pvt_v2_b0_small": 870_320,  # section 3.4
    "pvt_v2_b3": 44_725_696,
    "deit_tiny_patch16_224": 5_717_416 - 193 * 1000,
    "deit_small_patch16_224": 22_050_664 - 385 * 1000,
    "deit_base_patch16_224": 86_567_656 - 769 * 1000,
    "vit_base_patch16_224.drloc": 86_540_008 - 769 * 1000,  # section 4
    "t2t_vit_7": 4_255_694 - 257 * 1000,  # trained ones
}


@pytest.mark.parametrize("entry", list_backbones(), ids=lambda entry: entry.name)
def test_entries_match_the_built_networks(entry):
    with torch.device("meta"):
        backbone = create(entry.name)
        features = backbone(torch.empty(2, 3, entry.size, entry.size))
    assert sum(p.numel() for p in backbone.parameters()) == entry.parameters
    assert MEASURED.get(entry.name, entry.parameters) == entry.parameters
    assert backbone.size == entry.size
    assert backbone.grid_size() == (entry.grid, entry.grid)
    assert features.grid.shape == (2, entry.dim, entry.grid, entry.grid)
    assert features.pooled.shape == (2, backbone.dim) == (2, entry.dim)


def test_measured_backbones_are_listed():
    assert {entry.name for entry in list_backbones()} >= MEASURED.keys()


def test_small_pvt_is_b0_at_half_the_width():
    with torch.device("meta"):
        small, whole = (create(name).timm_model for name in ("pvt_v2_b0_small", "pvt_v2_b0"))
    assert [stage.norm.normalized_shape for stage in small.stages] == [(16,), (32,), (80,), (128,)]
    for ours, theirs in zip(small.stages, whole.stages):
        assert len(ours.blocks) == len(theirs.blocks)
        for mine, other in zip(ours.blocks, theirs.blocks):
            assert mine.attn.num_heads == other.attn.num_heads
            assert mine.mlp.fc1.weight.shape[0] * 2 == other.mlp.fc1.weight.shape[0]


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match=r"no backbone 'vit_tinny_patch16_224'.*vit_tiny_patch16_224"):
        create("vit_tinny_patch16_224")
    with pytest.raises(UserError, match="resnet34"):
        create("resnet_34")
    with pytest.raises(UserError, match="list backbones"):
        create("zzz")


def test_an_untested_name_of_a_supported_family_works():
    with torch.device("meta"):
        assert create("resnet34").dim == 512
        assert create("vit_small_patch32_384").size == 384


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "vit_relpos_small_patch16_224", "vgg11"])
def test_unsupported_kinds_are_refused(name):
    with torch.device("meta"), pytest.raises(UserError, match="vitling list backbones"):
        create(name)


def test_importing_the_package_imports_no_torch():
    code = "import sys, vitling.backbones as b; b.list_backbones(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
