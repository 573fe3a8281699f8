from __future__ import annotations

import json
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from vitling.backbones import create
from vitling.errors import UserError
from vitling.evaluation import load, load_bundle, save_bundle
from vitling.evaluation.familiarity import ImageSummary, calibrate_familiarity, count_pixel_features, fit_familiarity
from vitling.evaluation.trust import FILE as TRUST
from vitling.evaluation.trust import Trust

BACKBONES = [
    ("vit_micro_patch4_32", None, 3),
    ("vit_micro_patch4_32", 24, 1),
    ("vit_micro_patch4_32", 32, 4),
    ("deit_tiny_patch16_224", 96, 3),
    ("swin_tiny_patch4_window7_224", 112, 3),
    ("pvt_v2_b0", 64, 2),
    ("pvt_v2_b0_small", 112, 3),
    ("pvt_v2_b0_small", 224, 3),
    ("resnet18", 64, 1),
]


@pytest.mark.parametrize(("name", "size", "channels"), BACKBONES)
@torch.no_grad()
def test_timm_loads_a_bundle_with_the_same_logits(make_bundle, tmp_path, name, size, channels):
    backbone, head = make_bundle(tmp_path, name, size=size, channels=channels)
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = torch.randn(2, channels, backbone.size, backbone.size)
    expected = head(backbone(x).pooled)
    torch.testing.assert_close(theirs(x), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(load_bundle(tmp_path).logits(x), expected, rtol=0, atol=1e-5)
    assert theirs.pretrained_cfg["label_names"] == ["cat", "dog", "owl"]
    data_config = timm.data.resolve_model_data_config(theirs)
    assert tuple(data_config["input_size"]) == (channels, backbone.size, backbone.size)
    assert tuple(data_config["mean"]) == (0.5,) * channels


@pytest.mark.parametrize(
    ("name", "channels", "classes"),
    [
        ("t2t_vit_7", 1, ("cat", "dog")),
        ("t2t_vit_t_7", 3, ()),
        ("cvt_13", 3, ("cat", "dog")),
        ("cvt_13_official", 3, ()),
        ("cvt_tiny", 3, ()),
        ("pvt_small", 1, ("cat", "dog")),
        ("vil_tiny", 3, ("cat", "dog")),
    ],
)
@torch.no_grad()
def test_custom_networks_load_again(make_bundle, tmp_path, name, channels, classes):
    task = "single" if classes else "none"
    backbone, head = make_bundle(tmp_path, name, classes, task, size=32, channels=channels)
    x = torch.randn(2, channels, 32, 32)
    model = load_bundle(tmp_path)
    assert model.backbone.name == name
    features = backbone(x).pooled
    assert torch.equal(model.features(x), features)
    assert head is None or torch.equal(model.logits(x), head(features))


@pytest.mark.parametrize("name", ["vit_micro_patch4_32", "swin_tiny_patch4_window7_224"])
@torch.no_grad()
def test_model_without_a_head(make_bundle, tmp_path, name):
    backbone, _ = make_bundle(tmp_path, name, classes=(), task="none")
    x = torch.randn(1, 3, backbone.size, backbone.size)
    expected = backbone(x).pooled
    assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(x), expected)
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=7).eval()
    assert torch.equal(other.forward_head(other.forward_features(x), pre_logits=True), expected)
    model = load_bundle(tmp_path)
    assert torch.equal(model.features(x), expected)
    with pytest.raises(UserError, match="trained without labels"):
        model.logits(x)


def test_loaded_bundle_equals_the_saved_one(make_bundle, tmp_path):
    make_bundle(tmp_path, temperature=1.7, crop_fraction=0.9, bits=12)
    before = load_bundle(tmp_path)
    save_bundle(tmp_path / "again", before.backbone, before.head, before.meta)
    assert load_bundle(tmp_path / "again").meta == before.meta
    assert before.meta.temperature == 1.7
    assert before.backbone.name == "vit_micro_patch4_32"
    assert before.class_names == ("cat", "dog", "owl")


def test_load_accepts_a_run_directory_or_a_bundle(make_bundle, tmp_path):
    make_bundle(tmp_path / "run" / "model", classes=("last",) * 2)
    make_bundle(tmp_path / "run" / "best", classes=("best",) * 2)
    assert load(tmp_path / "run").class_names[0] == "last"
    assert load(tmp_path / "run", weights="best").class_names[0] == "best"
    assert load(tmp_path / "run" / "best").class_names[0] == "best"


def test_error_describes_a_folder_without_a_model(make_bundle, tmp_path):
    make_bundle(tmp_path / "runs" / "seed0" / "model")
    with pytest.raises(UserError, match=r"several seeds; the first is .*runs/seed0"):
        load(tmp_path / "runs")
    with pytest.raises(UserError, match="not validated"):
        load(tmp_path / "runs" / "seed0", weights="best")


def _refusal(folder):
    with pytest.raises(UserError) as problem:
        load(folder)
    return str(problem.value)


def test_invalid_folders_are_refused(bundle, tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no trained model"):
        load(tmp_path / "empty")
    with pytest.raises(UserError, match="best/"):
        load(tmp_path, weights="best")
    for name in ("config.json", "environment.json"):
        assert "--resume" not in _refusal(tmp_path / "empty")
        (tmp_path / "empty" / name).write_text("{}")
    assert "not finished; continue it with --resume" in _refusal(tmp_path / "empty")
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "model.safetensors").write_bytes(b"xx")
    with pytest.raises(UserError, match=r"cannot be read|not valid JSON"):
        load(bundle)
    del config["vitling"]
    (bundle / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="no vitling section"):
        load(bundle)
    (bundle / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot be read|not valid JSON"):
        load(bundle)


def test_mismatched_weights_are_named(make_bundle, bundle, tmp_path):
    make_bundle(tmp_path / "other", classes=("a", "b"))
    (tmp_path / "other" / "model.safetensors").replace(bundle / "model.safetensors")
    with pytest.raises(UserError, match="do not fit"):
        load(bundle)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(bundle, value):
    weights = load_file(bundle / "model.safetensors")
    name = next(name for name in weights if name.endswith("bias"))
    weights[name][0] = value
    save_file(weights, bundle / "model.safetensors")
    with pytest.raises(UserError, match=f"{name} is not finite"):
        load(bundle)


def test_inconsistent_bundle_is_not_written(bundle, tmp_path):
    model = load(bundle, device="cpu")
    with pytest.raises(ValueError, match="class names"):
        save_bundle(tmp_path / "x", model.backbone, None, model.meta)
    with pytest.raises(ValueError, match="built for 64 px"):
        save_bundle(tmp_path / "x", create("vit_micro_patch4_32", size=64), model.head, model.meta)
    assert not (tmp_path / "x").exists()


def draw_familiarity(backbone, wider=0):
    maps, pixels = torch.randn(20, 2 * backbone.dim + wider), torch.randn(20, count_pixel_features(32, 3))
    return calibrate_familiarity(fit_familiarity(ImageSummary(maps, pixels)), torch.rand(9, 3))


def test_trust_is_saved_and_loaded(make_bundle, tmp_path):
    backbone, head = make_bundle(tmp_path)
    meta = load_bundle(tmp_path).meta
    assert load_bundle(tmp_path).trust == Trust()  # as in models of older versions
    familiarity = replace(draw_familiarity(backbone), threshold=0.25)
    save_bundle(tmp_path, backbone, head, meta, Trust(torch.tensor([3.0, 1.0, 2.0]), familiarity))
    trust = load_bundle(tmp_path).trust
    assert trust.scores.tolist() == [1.0, 2.0, 3.0]
    new, logits = ImageSummary(torch.randn(5, 2 * backbone.dim), torch.randn(5, 15)), torch.randn(5, 3)
    torch.testing.assert_close(trust.familiarity.measure_signals(new, logits), familiarity.measure_signals(new, logits))
    assert trust.familiarity.threshold == 0.25
    assert load_bundle(tmp_path).resize(48).trust == Trust()  # distances and scores are those of one size
    save_bundle(tmp_path, backbone, head, meta)
    assert not (tmp_path / TRUST).exists()


def test_familiarity_of_an_older_version_is_left_out(make_bundle, tmp_path):
    make_bundle(tmp_path)
    save_file({"scores": torch.tensor([1.0]), "mean": torch.ones(4), "threshold": torch.tensor(1.0)}, tmp_path / TRUST)
    trust = load_bundle(tmp_path).trust
    assert (trust.scores.tolist(), trust.familiarity) == ([1.0], None)


def test_damaged_trust_is_a_clear_error(make_bundle, tmp_path):
    backbone, head = make_bundle(tmp_path)
    meta = load_bundle(tmp_path).meta
    (tmp_path / TRUST).write_bytes(b"no tensors")
    with pytest.raises(UserError, match="Delete it"):
        load_bundle(tmp_path)
    intact = draw_familiarity(backbone)
    damaged = [
        replace(intact, maps=replace(intact.maps, variances=torch.ones(3))),
        replace(intact, pixels=replace(intact.pixels, scale=torch.ones(3))),
        replace(intact, held_out=torch.ones(9)),
        replace(intact, held_out=torch.ones(4, 9)),
        replace(intact, held_out=torch.ones(3, 0)),
        replace(intact, threshold=float("nan")),
        replace(intact, pixels=replace(intact.pixels, mean=torch.full((15,), torch.nan))),
    ]
    for dtype in (torch.int64, torch.float16, torch.float64):
        damaged.append(replace(intact, maps=replace(intact.maps, directions=intact.maps.directions.to(dtype))))
    for familiarity in damaged:
        save_bundle(tmp_path, backbone, head, meta, Trust(familiarity=familiarity))
        with pytest.raises(UserError, match="parts are inconsistent"):
            load_bundle(tmp_path)
    save_bundle(tmp_path, backbone, head, meta, Trust(familiarity=draw_familiarity(backbone, wider=2)))
    with pytest.raises(UserError, match="belong to another network"):
        load_bundle(tmp_path)
