"""`vitling compare-methods`: every method has the same time, network and held-out images; test stays closed."""

from __future__ import annotations

import pytest

from tests.conftest import make_folder, make_image
from tests.runs import read, refused
from vitling.cli import run
from vitling.errors import StoppedItself
from vitling.recipes import compare_methods as comparing
from vitling.recipes.config import ComparisonConfig
from vitling.recipes.methods import METHODS
from vitling.recipes.summary import chance, comparison_table, show_comparison

TINY = ["--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16", "--loop.device", "cpu", "--val", "0.3"]
SHORT = ["--pretrain-epochs", "2", "--epochs", "2", "--minutes", "0.5", "--loop.trackers", "none"]


def compare(source, out, *flags) -> int:
    return run(["compare-methods", str(source), "--out", str(out), *TINY, *SHORT, *flags])


def test_methods_side_by_side(folder, tmp_path, capsys):
    methods = ("--methods", "simclr", "idmm", "supervised")
    assert compare(folder, tmp_path / "out", *methods, "--idmm.smoothing", "0.2") == 0
    shown = capsys.readouterr()
    assert "3 methods, 0.5 minutes each: about 2 minutes in all." in shown.err
    assert "may be chance" in shown.out
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert [row["method"] for row in rows] == ["supervised", "simclr", "idmm"]
    assert [("knn" in row, len(row["epochs"])) for row in rows] == [(False, 1), (True, 2), (True, 2)]
    assert len({row["images"] for row in rows}) == 1
    configs = {name: read(tmp_path / "out" / name / "config.json") for name in ("simclr", "idmm")}
    assert [config["idmm"]["smoothing"] for config in configs.values()] != [0.2, 0.2]
    assert configs["idmm"]["idmm"]["smoothing"] == 0.2
    before = rows
    assert compare(folder, tmp_path / "out", *methods, "--idmm.smoothing", "0.2", "--resume") == 0
    assert read(tmp_path / "out" / "comparison.json")["rows"] == before
    assert "not empty" in refused(capsys, "compare-methods", folder, "--out", tmp_path / "out")


def test_the_test_split_stays_closed(tmp_path):
    for split, each in (("train", 10), ("test", 4)):
        make_folder(tmp_path / "images", each=each, split=split)
    assert compare(tmp_path / "images", tmp_path / "out", "--methods", "supervised") == 0
    assert not (tmp_path / "out" / "supervised" / "test-openings.jsonl").exists()
    assert "test" not in read(tmp_path / "out" / "supervised" / "result.json")["last"]


def test_a_method_that_stops_does_not_stop_the_others(folder, tmp_path, monkeypatch, capsys):
    ended = {"last": {"val": {"top1": 0.5, "n": 50}}, "epochs": 3, "seconds": 4.0}

    def train(config):
        if config.method == "simclr":
            raise StoppedItself("The features collapsed.")
        return ended

    monkeypatch.setattr(comparing, "train", train)
    assert compare(folder, tmp_path / "out", "--methods", "simclr", "idmm") == 0
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert rows[0] == {"method": "simclr", "stopped": "The features collapsed."}
    assert rows[1]["value"] == 0.5
    assert "stopped" in capsys.readouterr().out


def test_what_cannot_be_compared(folder, tmp_path, capsys):
    def said(*flags, source=folder):
        return refused(capsys, "compare-methods", source, "--out", tmp_path / "out", *flags)

    assert "idmm, supervised" in said("--methods", "simclear")
    assert "--methods" in said("--method", "idmm")
    assert "more than 0" in said("--minutes", "0")
    assert "--seeds" in said("--seeds", "3")
    assert "no images to compare" in said("--val", "none")
    assert "have none" in said(source=_unlabelled(tmp_path / "flat"))
    assert not (tmp_path / "out").exists()


def _unlabelled(folder):
    folder.mkdir()
    for i in range(6):
        make_image(0, i).save(folder / f"{i}.png")
    return folder


def test_by_default_every_method():
    assert set(ComparisonConfig().methods) == set(METHODS)


def test_the_summary_says_what_it_cannot_tell(capsys):
    def row(method, value):
        return {"method": method, "value": value, "images": 200, "epochs": [8, 2], "seconds": [3.0, 1.0], "knn": 0.4}

    rows = [row("idmm", 0.80), row("simclr", 0.78), row("dino", 0.30), {"method": "byol", "stopped": "because"}]
    assert chance(rows[0]) == pytest.approx(0.08)
    show_comparison({"data": "my images", "rows": rows}, "runs/methods")
    shown = capsys.readouterr().out
    assert "below about 8.0 points" in shown
    assert "idmm is ahead, but simclr cannot be told from it" in shown
    assert "vitling train 'my images' --method idmm" in shown
    assert comparison_table({"rows": rows}).row_count == 4
    show_comparison({"data": "x", "rows": rows[-1:]}, "runs/methods")
    assert "Every method stopped" in capsys.readouterr().out
