"""The benchmark of pre-training end to end, and the losses of its released style."""

from __future__ import annotations

import importlib
import json
import math
import random
import tarfile
from pathlib import Path

import pytest
import torch

from tests.conftest import make_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = ["--backbone", "vit_nano_patch4_32", "--size", "32", "--batch", "16", "--workers", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    """Import the scripts as they import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def tar(tmp_path):
    folder = make_folder(tmp_path / "images", classes=2, each=12, width=40, height=36)
    with tarfile.open(tmp_path / "images.tar", "w") as file:
        for path in sorted(folder.rglob("*.png")):
            file.add(path, path.relative_to(folder))
    return tmp_path / "images.tar"


def test_measures_and_writes_both_sides(tar, tmp_path, capsys):
    main = importlib.import_module("idmm_pretraining").main
    out = tmp_path / "results" / "found.json"
    epochs = ["--epochs", "4", "--warm-up", "1", "--released-epochs", "2", "--released-warm-up", "1"]
    main([str(tar), *TINY, *epochs, "--out", str(out)])
    found = json.loads(out.read_text())
    fast, slow = found["rows"]
    assert (fast["side"], fast["images"], fast["epochs_measured"]) == ("vitling", 24, 4)
    assert (slow["side"], slow["images"], slow["epochs_measured"]) == ("released style", 24, 2)
    assert slow["epochs_not_run_but_added"] == 2
    assert slow["epoch_over_vitling"] == pytest.approx(slow["seconds_an_epoch"] / fast["seconds_an_epoch"])
    assert slow["whole_seconds"] > 2 * slow["seconds_an_epoch"]
    assert fast["whole_seconds"] > fast["first_epoch_ended_after"] > 0
    assert found["command"].startswith("python benchmarks/idmm_pretraining.py DATA --epochs 4 --warm-up 1 ")
    assert str(tmp_path) not in out.read_text()
    assert {"packages", "commit", "cpus", "gpu"} <= found["environment"].keys()
    assert "times as long" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--warm-up", "50"],
        ["--released-warm-up", "0"],
        ["--epochs", "6"],
        ["--backbone", "swin_tiny_patch4_window7_224"],
    ],
)
def test_wrong_options_are_refused(wrong):
    parse_options = importlib.import_module("idmm_pretraining").parse_options
    with pytest.raises(SystemExit):
        parse_options(["images.tar", *wrong])


def test_released_style_starts_at_twice_ln_n():
    """Two groups of crops, each at chance level."""
    style = importlib.import_module("released_style")
    torch.manual_seed(0)
    model = style.make_network("vit_nano_patch4_32", 32, classes=500)
    views = [torch.randn(8, 3, 32, 32) for _ in range(6)]
    loss = style.compute_loss(model, views, torch.arange(8))
    assert float(loss.detach()) == pytest.approx(2 * math.log(500), rel=0.02)


def test_cutmix_lam_is_the_area_that_is_kept():
    style = importlib.import_module("released_style")
    random.seed(0)
    for _ in range(20):
        own = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 3, 16, 16).clone()
        mixed, partner, share = style.cutmix(own.clone(), torch.arange(4))
        kept = (mixed == own).float().mean(dim=(1, 2, 3))
        moved = partner != torch.arange(4)
        assert torch.allclose(kept[moved], torch.full_like(kept[moved], share))
        assert bool((kept[~moved] == 1).all())
        assert 0.5 <= share <= 1
