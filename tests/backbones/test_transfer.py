from __future__ import annotations

import os

import pytest
import timm
import torch
from safetensors.torch import save_file

from vitling.backbones import create, load_weights
from vitling.backbones.position import resize_positions
from vitling.backbones.transfer import _to_timm_names, resize_backbone
from vitling.errors import UserError


@pytest.fixture
def source():
    return create("vit_micro_patch4_32", seed=1)


def test_the_same_size_copies_everything(source):
    target = create("vit_micro_patch4_32", seed=2)
    transfer = load_weights(target, source.state_dict())
    assert len(transfer.copied) == len(source.timm_model.state_dict())
    assert transfer.resized == transfer.missing == []
    assert transfer.skipped == {}
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(source.eval()(x).pooled, target.eval()(x).pooled)


def test_positions_are_resized_and_a_head_is_skipped(source, tmp_path):
    state = {**source.timm_model.state_dict(), "head.weight": torch.ones(5, 128)}
    save_file(state, tmp_path / "w.safetensors")
    target = create("vit_micro_patch4_32", size=64)
    transfer = load_weights(target, tmp_path / "w.safetensors")
    assert transfer.resized == ["pos_embed"]
    assert list(transfer.skipped) == ["head.weight"]
    expected = resize_positions(state["pos_embed"], (8, 8), (16, 16))
    assert torch.equal(target.timm_model.pos_embed.detach(), expected)
    assert "1 resized, 1 skipped" in transfer.summary()


@pytest.mark.parametrize(
    ("name", "size", "other"),
    [
        ("vit_micro_patch4_32", 32, 48),
        ("deit_tiny_patch16_224", 64, 96),
        ("pvt_v2_b0", 64, 96),
        ("pvt_small", 64, 96),
        ("cvt_13", 64, 96),
        ("t2t_vit_7", 64, 96),
        ("swin_tiny_patch4_window7_224", 224, 256),
        ("vil_tiny", 64, 96),
        ("resnet50", 64, 96),
    ],
)
def test_a_resized_backbone_gives_the_same_features(name, size, other):
    """It equals the original network at that size and draws no random numbers."""
    first = create(name, size, seed=3).eval()
    before = torch.get_rng_state()
    second = resize_backbone(first, other)
    assert torch.equal(before, torch.get_rng_state())
    assert (second.size, resize_backbone(first, size)) == (other, first)
    x = torch.randn(2, 3, other, other)
    with torch.no_grad():
        assert torch.allclose(first(x).pooled, second(x).pooled, atol=1e-4)


def test_other_shapes_are_skipped_with_the_reason(source):
    target = create("vit_micro_patch4_32", channels=1)
    transfer = load_weights(target, source.timm_model.state_dict())
    assert transfer.skipped == {"patch_embed.proj.weight": "shape [128, 3, 4, 4] instead of [128, 1, 4, 4]"}
    assert transfer.missing == ["patch_embed.proj.weight"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"model": state, "epoch": 3},
        lambda state: {"state_dict": {f"module.{k}": v for k, v in state.items()}},
        lambda state: {"teacher": {f"module.backbone.{k}": v for k, v in state.items()}, "student": {}},
        lambda state: {f"backbone.timm_model.{k}": v for k, v in state.items()},
    ],
)
def test_wrappers_and_prefixes_are_removed(source, wrap, tmp_path):
    torch.save(wrap(source.timm_model.state_dict()), tmp_path / "w.pth")
    transfer = load_weights(create("vit_micro_patch4_32"), tmp_path / "w.pth")
    assert transfer.missing == []
    assert transfer.skipped == {}


def test_swin_bias_tables_of_another_window_are_resized():
    name = "swin_tiny_patch4_window7_224"
    other = timm.create_model(name, img_size=96, num_classes=0, depths=(1, 1, 1, 1))  # windows 7, 7, 6, 3
    transfer = load_weights(create(name, seed=0), other.state_dict())
    assert [n.split(".")[1] for n in transfer.resized] == ["2", "3"]
    assert all(n.endswith("relative_position_bias_table") for n in transfer.resized)


def test_an_error_if_nothing_fits_changes_nothing(source):
    target = create("vit_micro_patch4_32", seed=2)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(UserError, match="a different architecture"):
        load_weights(target, {"layer1.weight": torch.ones(3)})
    with pytest.raises(UserError, match="no tensors"):
        load_weights(target, {"epoch": 3})
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    torch.save({"model": Malicious(str(tmp_path / "ran"))}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="arbitrary code"):
        load_weights(create("vit_micro_patch4_32"), tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "match"),
    [("w.npz", "not a weights file"), ("w.pt", "neither a zip file nor a pickle"), ("w.safetensors", "cannot be")],
)
def test_files_without_weights_are_refused(tmp_path, name, match):
    (tmp_path / name).write_bytes(b"not weights at all")
    with pytest.raises(UserError, match=match):
        load_weights(create("vit_micro_patch4_32"), tmp_path / name)
    with pytest.raises(UserError, match="There is no weights file"):
        load_weights(create("vit_micro_patch4_32"), tmp_path / "absent.pt")


def test_a_number_of_thousands_of_digits_in_a_name_is_no_stage():
    names = ["layers.0.downsample.reduction.weight", f"layers.{'9' * 5000}.downsample.x"]
    assert list(_to_timm_names({name: torch.zeros(1) for name in names})) == [
        "layers.1.downsample.reduction.weight",
        names[1],
    ]
