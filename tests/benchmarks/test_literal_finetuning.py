"""The literal recipe end to end, and its operations, schedule and mixing against vitling's."""

from __future__ import annotations

import importlib
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_folder, make_image
from vitling.objectives.progress import Progress
from vitling.training.config import FitConfig, OptimConfig
from vitling.training.schedules import lr_schedule
from vitling.views.randaugment import FILL, NUMBER, OPERATIONS, apply_layer

NOISY = make_image(1, 3, width=64, height=64)
SMOOTH = make_image(1, 3).resize((64, 64), Image.Resampling.BICUBIC)


@pytest.fixture
def literal(monkeypatch):
    """Import the script as it runs from the command line."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("literal_finetuning")


def test_trains_and_writes_no_local_paths(literal, tmp_path, capsys):
    for split, first in (("train", 0), ("test", 50)):
        make_folder(tmp_path / "images", classes=2, each=6, split=split, first=first)
    out = tmp_path / "found.json"
    tiny = ["--backbone", "vit_nano_patch4_32", "--size", "32", "--batch", "8", "--epochs", "4", "--workers", "0"]
    literal.main([str(tmp_path / "images"), *tiny, "--warm-up", "1", "--device", "cpu", "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert 0 <= row["top1"] <= 100
    assert row["images"] == 12
    assert str(tmp_path) not in out.read_text()


def test_operations_match_vitling(literal, monkeypatch):
    """Compare at medium strength and positive sign, without cutout, which is random. PIL takes the nearest pixel where
    vitling interpolates, so warps are compared on a smooth image; the others must be much closer than no operation."""
    assert set(literal.OPERATIONS) == set(OPERATIONS["uda"])
    monkeypatch.setattr(random, "choice", lambda signs: 1)
    level = 5 / 9
    amount = {"rotate": 30, "shear_x": 0.3, "shear_y": 0.3, "translate_x": 150 / 331, "translate_y": 150 / 331}
    amount = {name: most * level for name, most in amount.items()}
    warps = set(amount)
    amount |= dict.fromkeys(("brightness", "contrast", "saturation", "sharpness"), 1 + 0.9 * level)
    amount |= {"posterise": 6.0, "solarise": round(256 * (1 - level))}
    for name, operation in literal.OPERATIONS.items():
        if name == "cutout":
            continue
        photo = SMOOTH if name in warps else NOISY
        theirs = np.array(operation(photo, level), float)
        away = np.abs(render(photo, name, amount.get(name, 0.0)) - theirs).mean()
        nothing = np.abs(np.array(photo, float) - theirs).mean()
        assert away < (nothing / 2 if name in warps else min(0.5, nothing / 4)), name


def render(photo, name, amount):
    pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float()
    number, strength, none = torch.tensor([NUMBER[name]]), torch.tensor([float(amount)]), torch.zeros(1)
    return apply_layer(pixels, number, strength, FILL["uda"], "bilinear", none, none)[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    "wrong", [["--backbone", "t2t_vit_7"], ["--backbone", "vit_nano_patch4_32"]], ids=["network", "no test split"]
)
def test_wrong_options_are_refused(literal, tmp_path, wrong):
    with pytest.raises(SystemExit):
        literal.main([str(make_folder(tmp_path / "images", each=3)), *wrong])


def test_learning_rate_matches_vitling(literal):
    optim = OptimConfig(lr=5e-4, warmup_lr=0.0, min_lr=0.0, warmup_epochs=2, cosine_from="idmm")
    ours = lr_schedule(FitConfig(epochs=20, batch=8, optim=optim))
    for step in range(0, 160, 7):
        theirs = literal.learning_rate((step + 1) / 8, 20, 5e-4, 2)
        assert ours(Progress(step, 160, 20)) == pytest.approx(theirs, abs=4e-5)


def test_parts_are_mixed_separately(literal, monkeypatch):
    torch.manual_seed(0)
    drawn = iter([0.9, 0.6])
    monkeypatch.setattr(random, "betavariate", lambda a, b: next(drawn))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    images, labels = torch.randn(8, 3, 2, 2), torch.arange(8) % 5
    partners = iter([torch.tensor([1, 0, 3, 2]), torch.tensor([2, 3, 0, 1])])
    monkeypatch.setattr(torch, "randperm", lambda n, device: next(partners))
    found = literal.compute_loss(model, images, labels, epoch=0, parts=2, smoothing=0.1)
    expected = 0.0
    for i, (partner, share) in enumerate(zip([1, 0, 3, 2, 6, 7, 4, 5], [0.9] * 4 + [0.6] * 4)):
        log = model(share * images[i : i + 1] + (1 - share) * images[partner : partner + 1]).log_softmax(-1)[0]
        for label, weight in ((labels[i], share), (labels[partner], 1 - share)):
            expected -= weight * (0.9 * log[label] + 0.1 * log.mean()) / 8
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert math.isfinite(found.item())
