"""The detail that the pixel store loses, and inspect --store-loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_folder
from tests.made_runs import refused
from vitling.cli import run
from vitling.views.plan import Group, Plan
from vitling.views.policies import make_plan
from vitling.views.store_loss import measure_store_loss


def test_a_larger_store_loses_less(tmp_path):
    folder = make_folder(tmp_path / "images", classes=2, each=3, width=160, height=120)
    losses = measure_store_loss(str(folder), Plan((Group(48),)))
    assert [loss.size for loss in losses] == sorted({loss.size for loss in losses})
    assert losses[-1].mean > losses[0].mean + 3
    assert all(loss.low <= loss.mean for loss in losses)
    assert sum(loss.chosen for loss in losses) == 1
    assert losses[0].megabytes == pytest.approx(3 * losses[0].size ** 2 / 1000)


def test_a_smooth_image_loses_nothing(tmp_path):
    """A ramp is the same at every size."""
    (tmp_path / "images").mkdir()
    ramp = np.broadcast_to(np.linspace(0, 255, 256)[None, :, None], (256, 256, 3)).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "images" / "ramp.png")
    assert min(loss.mean for loss in measure_store_loss(str(tmp_path / "images"), Plan((Group(64),)))) > 40


def test_inspect_prints_and_writes_it(tmp_path, capsys):
    folder = make_folder(tmp_path / "images", classes=2, each=3, width=80, height=60)
    out = tmp_path / "found.json"
    assert run(["inspect", str(folder), "--out", str(out), "--store-loss", "32"]) == 0
    assert "dB" in capsys.readouterr().out
    assert json.loads(out.read_text())["store_loss"][0]["size"] == 32
    assert "224" in refused(capsys, "inspect", folder, "--out", out, "--store-loss", "0")


def test_all_views_of_a_policy_count_and_small_crops_lose_most(tmp_path, capsys):
    folder = make_folder(tmp_path / "images", classes=2, each=3, width=480, height=400)
    plans = (make_plan("idmm-pretrain"), Plan((Group(112),)))
    both, usual = ({loss.size: loss for loss in measure_store_loss(str(folder), plan)} for plan in plans)
    assert both[192].low < usual[192].low
    assert both[192].mean < usual[192].mean
    assert [size for size, loss in both.items() if loss.chosen] == [320]
    assert [size for size, loss in usual.items() if loss.chosen] == [192]
    assert both[320].low > both[192].low + 3
    assert "no random crops" in refused(capsys, "inspect", folder, "--out", tmp_path / "x.json", "--store-loss", "eval")
    assert "supervised" in refused(capsys, "inspect", folder, "--out", tmp_path / "x.json", "--store-loss", "idm")
