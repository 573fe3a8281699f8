from __future__ import annotations

import copy

import pytest
import timm
import torch
import torch.nn.functional as F

from vitling.backbones import create
from vitling.backbones.position import resize_map, resize_positions
from vitling.errors import UserError

SMALL = [
    "vit_micro_patch4_32",
    "deit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "pvt_v2_b0",
    "resnet18",
    "convnext_tiny",
]


@pytest.fixture(scope="module")
def backbones():
    return {name: create(name, seed=0).eval() for name in SMALL}


def images(backbone, size=None, batch=2):
    generator = torch.Generator().manual_seed(0)
    size = size or backbone.size
    return torch.randn(batch, 3, size, size, generator=generator)


@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_native_size_equals_timm_bit_for_bit(backbones, name):
    backbone = backbones[name]
    twin = timm.create_model(backbone.architecture, num_classes=0, **backbone.model_args).eval()
    twin.load_state_dict(backbone.timm_model.state_dict())
    x = images(backbone)
    final = twin.forward_features(x)
    features = backbone(x)
    assert torch.equal(features.pooled, twin.forward_head(final, pre_logits=True))
    if final.ndim == 3:
        final = final[:, 1:].transpose(1, 2).reshape(features.grid.shape)
    elif "swin" in name:
        final = final.permute(0, 3, 1, 2)
    assert torch.equal(features.grid, final)
    assert features.stages is None
    assert features.attention is None


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [
        ("deit_tiny_patch16_224", 96, 6),
        ("deit_tiny_patch16_224", 112, 7),
        ("swin_tiny_patch4_window7_224", 96, 3),
        ("swin_tiny_patch4_window7_224", 112, 4),
        ("pvt_v2_b0", 112, 4),
        ("resnet18", 96, 3),
        ("convnext_tiny", 96, 3),
        ("vit_micro_patch4_32", 24, 6),
    ],
)
@torch.no_grad()
def test_other_input_sizes(backbones, name, size, grid):
    backbone = backbones[name]
    features = backbone(images(backbone, size))
    assert features.grid.shape == (2, backbone.dim, grid, grid)
    assert backbone.grid_size(size) == (grid, grid)
    assert features.pooled.isfinite().all()


@torch.no_grad()
def test_oblong_inputs_have_oblong_grids(backbones):
    features = backbones["vit_micro_patch4_32"](torch.randn(1, 3, 16, 24))
    assert features.grid.shape == (1, 128, 4, 6)


@pytest.mark.parametrize(("name", "size"), [("vit_micro_patch4_32", 30), ("pvt_v2_b0", 16), ("resnet18", 0)])
def test_a_size_that_does_not_fit_is_refused(backbones, name, size):
    with pytest.raises(UserError, match=f"{size} px"):
        backbones[name].grid_size(size)
    with pytest.raises(UserError, match=f"{size} px"):
        create(name, size=size)


@torch.no_grad()
def test_vit_positions_at_96_px_are_resized_by_plain_bicubic(backbones):
    """Equal to a timm model built at 96 px with positions from F.interpolate and the class token kept."""
    backbone = backbones["deit_tiny_patch16_224"]
    state = dict(backbone.timm_model.state_dict())
    positions = state["pos_embed"]
    maps = positions[:, 1:].reshape(1, 14, 14, 192).permute(0, 3, 1, 2)
    maps = F.interpolate(maps, size=(6, 6), mode="bicubic", align_corners=False, antialias=False)
    state["pos_embed"] = torch.cat([positions[:, :1], maps.flatten(2).transpose(1, 2)], dim=1)
    twin = timm.create_model("deit_tiny_patch16_224", num_classes=0, img_size=96).eval()
    twin.load_state_dict(state)
    x = images(backbone, 96)
    torch.testing.assert_close(backbone(x).pooled, twin(x))


def test_positions_are_resized_in_fp32_without_antialiasing():
    positions = torch.randn(1, 50, 8)
    resized = resize_positions(positions, (7, 7), (14, 14))
    maps = positions[:, 1:].transpose(1, 2).reshape(1, 8, 7, 7)
    expected = F.interpolate(maps, size=(14, 14), mode="bicubic", align_corners=False)
    assert torch.equal(resized[:, :1], positions[:, :1])
    torch.testing.assert_close(resized[:, 1:].transpose(1, 2).reshape(1, 8, 14, 14), expected)
    half = resize_positions(positions.bfloat16(), (7, 7), (14, 14))
    whole = resize_positions(positions.bfloat16().float(), (7, 7), (14, 14))
    torch.testing.assert_close(half, whole.bfloat16())
    smoothed = timm.layers.resample_abs_pos_embed(positions, new_size=(3, 3), old_size=(7, 7))
    assert (resize_positions(positions, (7, 7), (3, 3)) - smoothed).abs().max() > 0.1


@pytest.mark.parametrize("new", [(3, 11), (14, 5), (1, 1)])
def test_resized_maps_and_gradients_match_torch(new):
    here, there = (torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    upstream = torch.randn(2, 3, *new)
    resized = resize_map(here.requires_grad_(), new)
    expected = F.interpolate(there.requires_grad_(), size=new, mode="bicubic", align_corners=False)
    (resized * upstream).sum().backward()
    (expected * upstream).sum().backward()
    torch.testing.assert_close(resized, expected)
    torch.testing.assert_close(here.grad, there.grad)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("vit_micro_patch4_32", [(128, 8)] * 6),
        ("swin_tiny_patch4_window7_224", [(96, 56), (192, 28), (384, 14), (768, 7)]),
        ("pvt_v2_b0", [(32, 56), (64, 28), (160, 14), (256, 7)]),
        ("resnet18", [(64, 56), (128, 28), (256, 14), (512, 7)]),
    ],
)
@torch.no_grad()
def test_stages(backbones, name, shapes):
    backbone = backbones[name]
    features = backbone(images(backbone, batch=1), stages=True)
    assert [tuple(s.shape[1:]) for s in features.stages] == [(d, g, g) for d, g in shapes]
    last = features.stages[-1]
    if hasattr(backbone.timm_model, "norm"):
        last = backbone.timm_model.norm(last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(last, features.grid)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("vit_micro_patch4_32", [(128, 8)] * 6),
        ("swin_tiny_patch4_window7_224", [(96, 56)] * 2 + [(192, 28)] * 2 + [(384, 14)] * 6 + [(768, 7)] * 2),
        ("pvt_v2_b0", [(d, g) for d, g in ((32, 56), (64, 28), (160, 14), (256, 7)) for _ in range(2)]),
        ("resnet18", [(d, g) for d, g in ((64, 56), (128, 28), (256, 14), (512, 7)) for _ in range(2)]),
    ],
)
@torch.no_grad()
def test_blocks(backbones, name, shapes):
    backbone = backbones[name]
    x = images(backbone, batch=1)
    features = backbone(x, stages="blocks")
    assert [tuple(s.shape[1:]) for s in features.stages] == [(d, g, g) for d, g in shapes]
    assert torch.equal(features.grid, backbone(x).grid)


def test_the_seed_sets_the_weights_and_keeps_the_global_generator():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, two, other = (create("vit_micro_patch4_32", seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    weight = "timm_model.blocks.0.attn.qkv.weight"
    assert not torch.equal(one.state_dict()[weight], other.state_dict()[weight])


@torch.no_grad()
def test_a_deep_copy_and_a_state_dict_give_the_same_features(backbones):
    for name in ("vit_micro_patch4_32", "swin_tiny_patch4_window7_224"):
        backbone = backbones[name]
        x = images(backbone, batch=1)
        twin = copy.deepcopy(backbone)
        fresh = create(name, seed=5).eval()
        fresh.load_state_dict(backbone.state_dict())
        next(twin.parameters()).add_(1)
        assert torch.equal(fresh(x).pooled, backbone(x).pooled)
        assert not torch.equal(twin(x).pooled, backbone(x).pooled)


def test_bf16_autocast_trains():
    backbone = create("vit_micro_patch4_32", drop_path=0.1, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        features = backbone(images(backbone, 16), stages=True)
    features.pooled.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in backbone.parameters())
    assert backbone.timm_model.pos_embed.grad.abs().sum() > 0


def test_other_channels_and_drop_path():
    backbone = create("vit_micro_patch4_32", channels=1, drop_path=0.2)
    assert backbone(torch.zeros(1, 1, 32, 32)).pooled.shape == (1, 128)
    assert backbone.channels == 1
    assert backbone.timm_model.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)
    with pytest.raises(UserError, match="drop_path"):
        create("vit_micro_patch4_32", drop_path=1.5)


def test_no_decay_names_are_parameter_names(backbones):
    vit = backbones["vit_micro_patch4_32"]
    assert vit.no_decay() == {"timm_model.pos_embed", "timm_model.cls_token"}
    swin = backbones["swin_tiny_patch4_window7_224"]
    assert len(swin.no_decay()) == 12
    assert all("relative_position_bias_table" in name for name in swin.no_decay())
    assert swin.no_decay() <= dict(swin.named_parameters()).keys()
    assert backbones["resnet18"].no_decay() == set()
