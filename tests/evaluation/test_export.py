from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest
import timm
import torch

from vitling.backbones.backbone import build
from vitling.errors import RunAborted, UserError
from vitling.evaluation import BundleMeta, load, save_bundle
from vitling.evaluation import export as export_module
from vitling.evaluation.bundle import CONFIG, WEIGHTS
from vitling.evaluation.export import export
from vitling.evaluation.trust import FILE as TRUST

onnxruntime = pytest.importorskip("onnxruntime")


def test_timm(bundle, tmp_path):
    assert export(bundle, tmp_path / "out") < 1e-5
    timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)


def test_what_timm_cannot_load_is_named(bundle, tmp_path):
    """vitling reads a description that starts with a byte order mark, timm does not."""
    folder = shutil.copytree(bundle, tmp_path / "m")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text, encoding="utf-8-sig")
    with pytest.raises(UserError, match=r"timm cannot load .*JSONDecodeError.*--format onnx"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [112, 224])
def test_variants_are_exported_as_timm_arguments(make_bundle, tmp_path, size):
    make_bundle(tmp_path / "m", "pvt_v2_b0_small", classes=(), task="none", size=size)
    assert export(tmp_path / "m", tmp_path / "out") < 1e-5
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert sum(p.numel() for p in theirs.parameters()) == 870_320


@pytest.mark.parametrize(
    ("name", "size", "classes"),
    [
        ("vit_micro_patch4_32", 32, ("a", "b")),
        ("vit_micro_patch4_32", 32, ()),
        pytest.param("swin_tiny_patch4_window7_224", 64, ("a", "b"), marks=pytest.mark.slow),
        ("pvt_v2_b0", 64, ("a", "b")),
        ("t2t_vit_7", 32, ("a", "b")),
    ],
)
def test_onnx(make_bundle, tmp_path, name, size, classes):
    make_bundle(tmp_path / "m", name, classes, "single" if classes else "none", size=size, temperature=2.0)
    out = tmp_path / "exported" / "m.onnx"
    out.parent.mkdir()
    (out.parent / TRUST).touch()  # of a model folder: not a file of this export
    assert export(tmp_path / "m", out, "onnx") < 1e-3
    assert sorted(p.name for p in out.parent.iterdir()) == ["m.json", "m.onnx", TRUST]
    session = onnxruntime.InferenceSession(str(out))
    model = load(tmp_path / "m", device="cpu")
    for batch in (1, 5):
        x = np.random.default_rng(0).normal(size=(batch, 3, size, size)).astype(np.float32)
        (theirs,) = session.run(None, {"images": x})
        ours = (model.logits if classes else model.features)(torch.from_numpy(x))
        np.testing.assert_allclose(theirs, ours.numpy(), atol=1e-3)
    about = json.loads(out.with_suffix(".json").read_text())
    assert about["class_names"] == list(classes)
    assert about["temperature"] == 2.0
    assert about["output"] == session.get_outputs()[0].name == ("logits" if classes else "features")


@pytest.mark.parametrize("form", ["drloc", "official"])
def test_onnx_of_a_small_cvt(tmp_path, form):
    sizes = {"dims": (8, 16, 32), "depths": (1, 1, 1), "heads": (1, 2, 4)}
    backbone = build("cvt_tiny", "cvt", {**sizes, "form": form, "in_chans": 3}, 32).eval()
    meta = BundleMeta("none", (), size=32, store_size=48, mean=(0.5,) * 3, std=(0.25,) * 3)
    save_bundle(tmp_path / "m", backbone, None, meta)
    assert export(tmp_path / "m", tmp_path / "m.onnx", "onnx") < 1e-3


def test_networks_unknown_to_timm_are_refused(make_bundle, tmp_path):
    make_bundle(tmp_path / "m", "t2t_vit_7", size=32)
    with pytest.raises(UserError, match="timm has no t2t_vit"):
        export(tmp_path / "m", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_swin_that_pads_and_rolls_is_refused(make_bundle, tmp_path):
    make_bundle(tmp_path / "m", "swin_tiny_patch4_window7_224", size=96)
    with pytest.raises(UserError, match="96 px this Swin pads"):
        export(tmp_path / "m", tmp_path / "out")
    make_bundle(tmp_path / "n", "swin_tiny_patch4_window7_224.window14")
    assert export(tmp_path / "n", tmp_path / "out") < 1e-4


def test_differing_outputs_abort_the_export(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "TOLERANCE", -1.0)
    with pytest.raises(RunAborted, match="outputs of the ONNX model differ"):
        export(bundle, tmp_path / "m.onnx", "onnx")
    assert not list(tmp_path.glob("*.onnx"))


def test_missing_packages_are_named(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(UserError, match=r"needs onnxscript: pip install 'vitling\[onnx\]'"):
        export(bundle, tmp_path / "m.onnx", "onnx")


def test_wrong_suffix_is_refused(bundle, tmp_path):
    with pytest.raises(UserError, match=r"end in \.onnx"):
        export(bundle, tmp_path / "m.bin", "onnx")


@pytest.mark.parametrize("name", ["replace", "unlink", "mkdir"])
def test_a_failed_export_keeps_no_files_that_do_not_belong_together(make_bundle, tmp_path, monkeypatch, name):
    """After every failure the export is the old one, the new one, or recognisably incomplete; and can be repeated."""
    old, new = tmp_path / "old", tmp_path / "new"
    make_bundle(old, "vit_nano_patch4_32")
    make_bundle(new, "vit_micro_patch4_32")
    original, out = getattr(os, name), tmp_path / "out"
    for moment in range(4):
        export(old, out)
        calls = []

        def fail(*arguments, calls=calls, moment=moment, **named):
            calls.append(arguments)
            if len(calls) == moment + 1:
                raise OSError(errno.EIO, "Input/output error")
            return original(*arguments, **named)

        with monkeypatch.context() as patch, suppress(OSError):
            patch.setattr(os, name, fail)
            export(new, out)
        weights, config = out / WEIGHTS, out / CONFIG
        if config.exists():
            source = old if weights.read_bytes() == (old / WEIGHTS).read_bytes() else new
            assert config.read_bytes() == (source / CONFIG).read_bytes()
        export(new, out)
        assert weights.read_bytes() == (new / WEIGHTS).read_bytes()
        assert not list(out.glob(".*"))
