"""`vitling compare-methods`: every method has the same time, network and held-out images; test stays closed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import make_folder, make_image
from tests.made_runs import read, refused, write_run
from tests.resolved import plan_for
from vitling.cli import run
from vitling.commands.compare_methods import comparison_table, print_comparison
from vitling.errors import MachineFault, RunAborted, UserError
from vitling.methods import METHODS
from vitling.runs import compare_methods as comparing
from vitling.settings.config import ComparisonConfig
from vitling.settings.facts import Facts
from vitling.settings.plan import is_pretraining_optional

TINY = ["--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16", "--loop.device", "cpu", "--val", "0.3"]
SHORT = ["--pretrain-epochs", "2", "--epochs", "2", "--minutes", "0.5", "--loop.trackers", "none"]


def compare(source, out, *flags) -> int:
    return run(["compare-methods", str(source), "--out", str(out), *TINY, *SHORT, *flags])


def test_methods_side_by_side(folder, tmp_path, capsys):
    methods = ("--methods", "simclr", "idmm", "supervised")
    assert compare(folder, tmp_path / "out", *methods, "--idmm.smoothing", "0.2") == 0
    shown = capsys.readouterr()
    assert "3 methods, 0.5 minutes each: about 1.5 minutes in total." in shown.err
    assert "Method 2 of 3: simclr " in shown.err
    assert "One seed each" in shown.out
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert [row["method"] for row in rows] == ["supervised", "simclr", "idmm"]
    assert [("knn" in row, len(row["epochs"])) for row in rows] == [(False, 1), (True, 2), (True, 2)]
    assert len({row["images"] for row in rows}) == 1
    differences = read(tmp_path / "out" / "comparison.json")["differences"]
    best = max(rows, key=lambda row: row["value"])
    assert [found["better"] for found in differences] == 2 * [best["method"]]
    values = {row["method"]: row["value"] for row in rows}
    for found in differences:
        assert found["difference"] == pytest.approx(best["value"] - values[found["worse"]])
    configs = {name: read(tmp_path / "out" / name / "config.json") for name in ("simclr", "idmm")}
    assert [config["idmm"]["smoothing"] for config in configs.values()] != [0.2, 0.2]
    assert configs["idmm"]["idmm"]["smoothing"] == 0.2
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f"<h3>{name}</h3>" in page for name in ("supervised", "simclr", "idmm"))
    assert str(tmp_path / "out" / "report.html") in shown.out
    before = rows
    assert ("--idmm.smoothing 0.2" in shown.out) is (best["method"] == "idmm")
    assert f"--method {best['method']} --size 8 --backbone vit_micro_patch4_32" in shown.out
    assert run(["compare-methods", "--out", str(tmp_path / "out"), "--resume"]) == 0  # no settings are needed
    assert read(tmp_path / "out" / "comparison.json")["rows"] == before
    assert "not empty" in refused(capsys, "compare-methods", folder, "--out", tmp_path / "out")


def test_the_test_split_stays_closed(tmp_path):
    for split, each in (("train", 10), ("test", 4)):
        make_folder(tmp_path / "images", each=each, split=split)
    assert compare(tmp_path / "images", tmp_path / "out", "--methods", "supervised") == 0
    assert not (tmp_path / "out" / "supervised" / "test-openings.jsonl").exists()
    assert "test" not in read(tmp_path / "out" / "supervised" / "result.json")["last"]


def test_baselines_with_other_backbones(folder, tmp_path, monkeypatch, capsys):
    """They train on labels only for the same time; the command that is printed names their backbone."""
    seen = []

    def train(config):
        seen.append((config.method, config.backbone, config.minutes, Path(config.out).name))
        value = 0.9 if config.backbone == "vit_nano_patch4_32" else 0.5
        return {"last": {"val": {"top1": value, "n": 50}}, "epochs": 3, "seconds": 4.0}

    monkeypatch.setattr(comparing, "train", train)
    monkeypatch.setattr(comparing, "_compare", lambda config, methods: [])
    assert compare(folder, tmp_path / "out", "--methods", "idmm", "--baselines", "vit_nano_patch4_32", "resnet50") == 0
    assert seen == [
        ("idmm", "vit_micro_patch4_32", 0.5, "idmm"),
        ("supervised", "vit_nano_patch4_32", 0.5, "supervised-vit_nano_patch4_32"),
        ("supervised", "resnet50", 0.5, "supervised-resnet50"),
    ]
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert [row["method"] for row in rows] == [name for *_, name in seen]
    shown = " ".join(capsys.readouterr().out.split())
    assert "--method supervised --size 8 --backbone vit_nano_patch4_32" in shown
    said = refused(capsys, "compare-methods", folder, "--out", tmp_path / "other", "--baselines", "resnett")
    assert "no backbone 'resnett'" in said


def test_baselines_train(folder, tmp_path):
    assert compare(folder, tmp_path / "out", "--methods", "supervised", "--baselines", "vit_nano_patch4_32") == 0
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert [row["method"] for row in rows] == ["supervised", "supervised-vit_nano_patch4_32"]
    assert all("value" in row and len(row["epochs"]) == 1 for row in rows)
    assert read(tmp_path / "out" / "supervised-vit_nano_patch4_32" / "config.json")["backbone"] == "vit_nano_patch4_32"


def test_a_method_that_stops_does_not_stop_the_others(folder, tmp_path, monkeypatch, capsys):
    ended = {"last": {"val": {"top1": 0.5, "n": 50}}, "epochs": 3, "seconds": 4.0}

    def train(config):
        if config.method == "simclr":
            raise RunAborted("The features collapsed.")
        return ended

    monkeypatch.setattr(comparing, "train", train)
    assert compare(folder, tmp_path / "out", "--methods", "simclr", "idmm") == 0
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert rows[0] == {"method": "simclr", "stopped": "The features collapsed."}
    assert rows[1]["value"] == 0.5
    assert "stopped" in capsys.readouterr().out


def test_a_full_disk_is_no_result_of_a_method(folder, tmp_path, monkeypatch, capsys):
    def train(config):
        raise MachineFault("The disk is full.")

    monkeypatch.setattr(comparing, "train", train)
    assert compare(folder, tmp_path / "out", "--methods", "simclr", "idmm") == 3
    assert not (tmp_path / "out" / "comparison.json").exists()
    assert "Error: The disk is full." in capsys.readouterr().err


def test_resumed_comparison_keeps_its_first_stages(folder, tmp_path):
    """Its method counts as explicit, so however short the time is, the stage is not skipped."""
    config = ComparisonConfig(str(folder), str(tmp_path), resume=True, explicit=("out", "resume"), minutes=0.5)
    request = comparing._make_request(config, "simclr")
    assert not is_pretraining_optional(plan_for(request, Facts(images=1_198, classes=10)))


def test_stopped_resume_loses_no_rows(folder, tmp_path, monkeypatch, capsys):
    ended = {"last": {"val": {"top1": 0.5, "n": 50}}, "epochs": 3, "seconds": 4.0}
    monkeypatch.setattr(comparing, "train", lambda config: ended)
    monkeypatch.setattr(comparing, "_compare", lambda config, methods: [])
    methods = ["--methods", "simclr", "idmm", "byol"]
    assert compare(folder, tmp_path / "out", *methods) == 0

    def train(config):
        if config.method == "idmm":
            raise UserError("No more.")
        return ended

    monkeypatch.setattr(comparing, "train", train)
    assert "No more" in refused(capsys, "compare-methods", "--out", tmp_path / "out", "--resume")
    rows = read(tmp_path / "out" / "comparison.json")["rows"]
    assert [row["method"] for row in rows] == ["simclr", "idmm", "byol"]
    message = refused(capsys, "compare", tmp_path / "out", tmp_path / "out" / "idmm")
    assert f"Name one of its runs, such as {tmp_path / 'out' / 'idmm'}" in message


def test_impossible_comparisons_are_refused(folder, tmp_path, capsys):
    def get_message(*flags, source=folder):
        return refused(capsys, "compare-methods", source, "--out", tmp_path / "out", *flags)

    assert "idmm, supervised" in get_message("--methods", "simclear")
    assert "separated by spaces" in get_message("--methods", "idmm,simclr")
    (tmp_path / "file").touch()
    assert "cannot be written" in get_message("--out", tmp_path / "file")
    assert "--methods" in get_message("--method", "idmm")
    assert "above 0" in get_message("--minutes", "0")
    assert "--seeds" in get_message("--seeds", "3")
    assert "--pretrain-preset" in get_message("--pretrain-preset", "paper")
    assert "no images to compare" in get_message("--val", "none")
    assert "have none" in get_message(source=_unlabelled(tmp_path / "flat"))
    assert not (tmp_path / "out").exists()


def _unlabelled(folder):
    folder.mkdir()
    for i in range(6):
        make_image(0, i).save(folder / f"{i}.png")
    return folder


def test_by_default_every_method():
    assert set(ComparisonConfig().methods) == set(METHODS)


def test_summary_names_methods_that_cannot_be_told_apart(capsys):
    def row(method, value):
        return {"method": method, "value": value, "images": 200, "epochs": [8, 2], "seconds": [3.0, 1.0], "knn": 0.4}

    def beside(worse, difference, low, high):
        found = {"better": "idmm", "worse": worse, "difference": difference, "interval": [low, high]}
        return found | {"told_apart": low > 0}

    rows = [row("idmm", 0.80), row("simclr", 0.78), row("dino", 0.30), {"method": "byol", "stopped": "because"}]
    differences = [beside("simclr", 0.02, -0.01, 0.05), beside("dino", 0.50, 0.44, 0.56)]
    print_comparison({"data": "my images", "rows": rows, "differences": differences}, "runs/methods")
    shown = " ".join(capsys.readouterr().out.split())
    assert "idmm ranks first, but on 200 held-out images its lead over simclr (+2.0 points" in shown
    assert "dino (" not in shown
    assert "One seed each" in shown
    assert "vitling train 'my images' --method idmm" in shown
    print_comparison({"data": "x", "rows": [rows[0], rows[2]], "differences": differences[1:]}, "runs/methods")
    assert "idmm is better than the others; the next is dino (+50.0 points" in capsys.readouterr().out
    assert comparison_table({"rows": rows}).row_count == 4
    print_comparison({"data": "x", "rows": rows[-1:], "differences": []}, "runs/methods")
    assert "Every method stopped" in capsys.readouterr().out


def test_methods_are_compared_on_the_same_images(tmp_path):
    """Two methods that differ on few images, always in favour of one; their accuracies alone would not show it."""
    right = np.arange(200) < 160
    rows = []
    for method, lost in (("idmm", 0), ("simclr", 10)):
        write_run(tmp_path / method, right & (np.arange(200) >= lost), split="last/val")
        rows.append({"method": method, "value": (160 - lost) / 200, "images": 200})
    comparing._write(ComparisonConfig(source="x", out=str(tmp_path)), rows)
    (found,) = read(tmp_path / "comparison.json")["differences"]
    assert (found["better"], found["worse"]) == ("idmm", "simclr")
    assert found["interval"][0] > 0
    assert found["mcnemar_p"] < 0.01
