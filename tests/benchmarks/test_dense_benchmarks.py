"""The benchmarks of detection and segmentation, small and on the CPU."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.runs.drawn_scenes import make_coco_folder, make_mask_folder

NANO = "vit_nano_patch4_32"


@pytest.fixture
def scripts(monkeypatch):
    """Import the scripts as they run from the command line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module


def test_overfitting_is_measured_for_all_models(scripts, tmp_path, capsys):
    coco, camvid = make_coco_folder(tmp_path / "coco", {"train": 3}), make_mask_folder(tmp_path / "masks", {"train": 3})
    out = tmp_path / "found.json"
    flags = ["--backbone", NANO, "--size", "64", "--width", "16", "--images", "2", "--steps", "2", "--device", "cpu"]
    files = ["--coco", str(coco), "--camvid", str(camvid), "--out", str(out), "--pictures", str(tmp_path / "pictures")]
    scripts("dense_overfit").main([*flags, *files, "--ignore-index", "255"])
    rows = json.loads(out.read_text())["rows"]
    assert [(row["model"], row["images"], row["steps"]) for row in rows] == [
        ("mask-rcnn", 2, 2),
        ("cascade", 2, 2),
        ("upernet", 2, 2),
    ]
    assert {"box_ap50", "mask_ap50"} <= rows[0].keys()
    assert "mean_iou" in rows[2]
    assert (tmp_path / "pictures" / "upernet-worst-1.jpg").exists()
    assert "upernet" in capsys.readouterr().out


def test_speed_is_measured_beside_torchvision(scripts, tmp_path):
    coco, out = make_coco_folder(tmp_path / "coco", {"train": 2}), tmp_path / "found.json"
    flags = ["--backbones", NANO, "--batch", "2", "--shorter", "48", "--longest", "64", "--store-size", "64"]
    flags += ["--warmup", "0", "--steps", "1", "--compile", "off", "--device", "cpu", "--out", str(out)]
    scripts("dense_speed").main([str(coco), *flags])
    rows = json.loads(out.read_text())["rows"]
    assert [row["backbone"] for row in rows] == ["resnet50", "resnet50", NANO]
    assert all(row["images_per_second"] > 0 for row in rows)
