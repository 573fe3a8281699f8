"""The detail that the pixel store loses."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import make_folder
from vitling.views.plan import Group, Plan
from vitling.views.policies import make_plan


@pytest.fixture
def store_loss(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("store_loss")


def test_a_larger_store_loses_less(store_loss, tmp_path):
    folder = make_folder(tmp_path / "images", classes=2, each=3, width=160, height=120)
    losses = store_loss.measure_store_loss(str(folder), Plan((Group(48),)))
    assert [loss.size for loss in losses] == sorted({loss.size for loss in losses})
    assert losses[-1].mean > losses[0].mean + 3
    assert all(loss.low <= loss.mean for loss in losses)
    assert sum(loss.chosen for loss in losses) == 1


def test_a_smooth_image_loses_nothing(store_loss, tmp_path):
    """A ramp is the same at every size."""
    (tmp_path / "images").mkdir()
    ramp = np.broadcast_to(np.linspace(0, 255, 256)[None, :, None], (256, 256, 3)).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "images" / "ramp.png")
    losses = store_loss.measure_store_loss(str(tmp_path / "images"), Plan((Group(64),)))
    assert min(loss.mean for loss in losses) > 40


def test_all_views_of_a_policy_count_and_small_crops_lose_most(store_loss, tmp_path):
    folder = make_folder(tmp_path / "images", classes=2, each=3, width=480, height=400)
    plans = (make_plan("idmm-pretrain"), Plan((Group(112),)))
    both, usual = ({loss.size: loss for loss in store_loss.measure_store_loss(str(folder), plan)} for plan in plans)
    assert both[192].low < usual[192].low
    assert both[192].mean < usual[192].mean
    assert [size for size, loss in both.items() if loss.chosen] == [320]
    assert [size for size, loss in usual.items() if loss.chosen] == [192]
    assert both[320].low > both[192].low + 3


def test_the_rows_of_all_plans_are_written(store_loss, tmp_path, monkeypatch):
    folder, out = make_folder(tmp_path / "images", classes=2, each=3, width=80, height=60), tmp_path / "loss.json"
    monkeypatch.setattr(store_loss, "PLANS", {"32 px": Plan((Group(32),))})
    monkeypatch.setattr("sys.argv", ["store_loss.py", str(folder), "--out", str(out)])
    store_loss.main()
    written = json.loads(out.read_text())
    assert written["command"] == "python benchmarks/store_loss.py DATA"
    assert {row["views"] for row in written["rows"]} == {"32 px"}
