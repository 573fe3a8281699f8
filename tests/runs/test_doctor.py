"""`vitling doctor`: wrong labels are found, written, drawn, and read back by --labels."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import make_folder, make_image
from tests.made_runs import pretrain, read, refused, train
from vitling.cli import run
from vitling.data.config import DataConfig
from vitling.data.sources import read_source
from vitling.runs.doctor_folds import _classify_both_ways, _name_folds
from vitling.runs.report import collect
from vitling.runs.report_files import open_files
from vitling.runs.report_images import Limits
from vitling.runs.report_suspects import collect_suspects
from vitling.settings.config import TrainConfig
from vitling.settings.doctor import DoctorConfig

WRONG = {f"class-{c}/image-{i:02d}.png" for c, i in ((0, 3), (1, 4), (2, 5))}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Write 72 images of three classes, of which three are in the folder of the next class."""
    root = make_folder(tmp_path_factory.mktemp("doctor") / "images", classes=3, each=24)
    for path in WRONG:
        kind = (int(path[6]) + 1) % 3
        make_image(kind, 50).save(root / path)
    return root


@pytest.fixture(scope="module")
def features(images, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "features"
    assert pretrain(images, out, "--epochs", "2", "--no-report") == 0
    return out


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_wrong_labels_are_found_and_read_back(images, features, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(["doctor", str(features), "--out", str(out), "--device", "cpu", "--fill", "suggested"]) == 0
    printed = capsys.readouterr().out
    assert "wrong label" in printed
    rows = read_rows(out / "suspects.csv")
    assert {row["path"] for row in rows} >= WRONG
    assert len(rows) <= 8
    for row in rows:
        assert row["label"] == row["suggested"] != row["given"]
        assert row["split"] == "train"
        score = 4 * float(row["given_probability"]) - float(row["suggested_probability"])
        assert float(row["score"]) == pytest.approx(score, abs=4e-4)
    assert [float(row["score"]) for row in rows] == sorted(float(row["score"]) for row in rows)
    with Image.open(out / "suspects.png") as sheet:
        assert sheet.width > 500
    with np.load(out / "probabilities.npz") as saved:
        given = dict(zip(saved["paths"], saved["probabilities"][np.arange(72), saved["labels"]]))
        assert saved["classes"].tolist() == ["class-0", "class-1", "class-2"]
        assert np.allclose(saved["probabilities"].sum(axis=1), 1)
    assert all(given[row["path"]] == pytest.approx(float(row["given_probability"]), abs=1e-4) for row in rows)
    summary = read(out / "labels.json")
    assert summary["images"] == 72
    assert len(summary["suspects"]) == len(rows)
    split = read_source(str(images), DataConfig(), str(out / "suspects.csv")).splits["train"]
    assert split.labels is not None
    corrected = dict(zip(split.keys, split.labels))
    assert all(corrected[path] == (f"class-{(int(path[6]) + 1) % 3}",) for path in WRONG)


def test_report_shows_the_suspects(images, features, tmp_path):
    folder = shutil.copytree(features, tmp_path / "run")
    files = open_files("run", folder)
    assert collect_suspects(folder, files.resolved.config) is None
    assert run(["doctor", str(folder), "--device", "cpu"]) == 0
    found = collect_suspects(folder, files.resolved.config)
    assert [one.path for one in found.shown] == [row["path"] for row in read_rows(folder / "doctor" / "suspects.csv")]
    assert sorted(one.tile for one in found.shown) == list(range(found.total))
    moved = replace(files.resolved.config, source=str(tmp_path / "elsewhere"))
    assert {one.tile for one in collect_suspects(folder, moved).shown} == {-1}
    assert collect(files, Limits()).suspects == found


def test_by_default_the_file_changes_nothing_until_edited(images, features, tmp_path):
    assert run(["doctor", str(features), "--out", str(tmp_path), "--device", "cpu", "--top", "1"]) == 0
    rows = read_rows(tmp_path / "suspects.csv")
    assert all(row["label"] == row["given"] for row in rows)
    notes = read_source(str(images), DataConfig(), str(tmp_path / "suspects.csv")).notes
    assert any("0 labels changed" in note for note in notes)


def test_labels_that_cannot_be_predicted_are_warned_of(images, features, tmp_path, capsys):
    paths = sorted(path.relative_to(images).as_posix() for path in images.rglob("*.png"))
    rows = [f"{path},class-{c}" for path, c in zip(paths, np.random.default_rng(0).integers(0, 3, len(paths)))]
    (tmp_path / "random.csv").write_text("\n".join(["path,label", *rows]))
    out = str(tmp_path / "out")
    assert (
        run(["doctor", str(features), "--labels", str(tmp_path / "random.csv"), "--out", out, "--device", "cpu"]) == 0
    )
    printed = capsys.readouterr()
    assert "most suspects are labelled correctly" in printed.out + printed.err


def test_the_first_stage_of_a_run_is_used(images, tmp_path):
    out = tmp_path / "run"
    stages = ["--method", "idmm", "--pretrain-epochs", "1", "--pretrain-size", "8", "--val", "none", "--no-report"]
    assert train(images, out, *stages) == 0
    assert run(["doctor", str(out), "--device", "cpu"]) == 0
    assert "pretrain" in read(out / "doctor" / "labels.json")["method"]


def test_a_supervised_run_needs_folds(images, tmp_path, capsys):
    out = tmp_path / "run"
    assert train(images, out, "--no-report", "--epochs", "2") == 0
    assert "--folds 5" in refused(capsys, "doctor", out)
    assert run(["doctor", str(out), "--folds", "2", "--device", "cpu"]) == 0
    folds = out / "doctor" / "folds" / "2-seed0"
    configs = [read(folds / f"fold-{i}" / "config.json") for i in range(2)]
    assert [config["data"]["fold"] for config in configs] == [0, 1]
    whole = read(out / "config.json")
    for config in configs:
        assert config["optim"] == whole["optim"]
        assert (config["epochs"], config["size"], config["batch"]) == (whole["epochs"], whole["size"], whole["batch"])
    images_each = [read(folds / f"fold-{i}" / "result.json")["images"] for i in range(2)]
    assert sum(images_each) == 72  # each image is left out once
    summary = read(out / "doctor" / "labels.json")
    assert (summary["images"], summary["unchecked"]) == (72, 0)
    finished = (folds / "fold-0" / "result.json").stat().st_mtime_ns
    assert run(["doctor", str(out), "--folds", "2", "--device", "cpu"]) == 0  # finished folds are kept
    assert (folds / "fold-0" / "result.json").stat().st_mtime_ns == finished
    both = ["doctor", str(out), "--folds", "2", "--at-once", "2", "--device", "cpu", "--out", str(tmp_path / "both")]
    assert run(both) == 0  # in two processes, with the same result
    assert "Training 2 folds, 2 at once" in capsys.readouterr().err
    with np.load(out / "doctor/probabilities.npz") as alone, np.load(tmp_path / "both/probabilities.npz") as together:
        assert alone["paths"].tolist() == together["paths"].tolist()
        np.testing.assert_allclose(together["probabilities"], alone["probabilities"], atol=1e-5)
    config = folds / "fold-0/model/config.json"
    changed = read(config)
    changed["vitling"]["class_names"].reverse()
    config.write_text(json.dumps(changed))
    assert "trained on other classes" in refused(capsys, "doctor", out, "--folds", "2", "--device", "cpu")


def test_folds_average_an_image_and_its_mirror_image():
    images = torch.rand(2, 3, 4, 4)
    top_row = SimpleNamespace(logits=lambda images: images[:, 0, 0])
    expected = (images[:, 0, 0] + images[:, 0, 0, [3, 2, 1, 0]]) / 2
    assert torch.equal(_classify_both_ways(top_row, images), expected)


def test_an_edited_file_is_not_overwritten(features, tmp_path, capsys):
    flags = ["--out", str(tmp_path), "--device", "cpu"]
    for _ in range(2):  # as written, it may be replaced
        assert run(["doctor", str(features), *flags]) == 0
    mine = tmp_path / "suspects.csv"
    mine.write_text(mine.read_text() + "\n")
    os.utime(mine, ns=(time.time_ns() + 10**9,) * 2)
    assert "has been edited" in refused(capsys, "doctor", features, *flags)
    assert mine.read_text().endswith("\n\n")


def test_a_link_in_the_run_is_not_followed(features, tmp_path, capsys):
    run_folder = tmp_path / "run"
    shutil.copytree(features, run_folder)
    (tmp_path / "elsewhere").mkdir()
    (run_folder / "doctor").symlink_to(tmp_path / "elsewhere")
    assert run(["doctor", str(run_folder)]) == 2
    assert "is a link" in capsys.readouterr().err
    assert not any((tmp_path / "elsewhere").iterdir())


def test_folds_do_not_start_from_weights_that_know_the_labels(images, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(images, first, "--no-report", "--epochs", "1") == 0
    flags = ["--from", str(first), "--epochs", "1", "--no-report", "--val", "none", "--loop.device", "cpu"]
    assert run(["finetune", str(images), "--out", str(second), *flags]) == 0
    assert "trained on the same labels" in refused(capsys, "doctor", second, "--folds", "2", "--device", "cpu")


def test_folds_are_kept_by_their_labels(tmp_path):
    config, plain = DoctorConfig(run="run", folds=3), TrainConfig(source="images")
    corrected = tmp_path / "labels.csv"
    names = {_name_folds(config, plain), _name_folds(replace(config, seed=1), plain)}
    for text in ("path,label\n", "path,label\na,b\n"):
        corrected.write_text(text)
        names.add(_name_folds(config, replace(plain, labels=str(corrected))))
    assert len(names) == 4


def test_data_that_cannot_be_checked_is_refused(images, features, tmp_path, capsys):
    assert "is not a run" in refused(capsys, "doctor", images)
    assert "--folds 1" in refused(capsys, "doctor", features, "--folds", "1")
    assert "has none" in refused(capsys, "doctor", features, "--folds", "2")
    assert "several labels" in refused(capsys, "doctor", pretrain_on(several_labels(images, tmp_path), tmp_path / "m"))
    flat = tmp_path / "flat"
    shutil.copytree(images / "class-0", flat)
    assert "has no labels" in refused(capsys, "doctor", pretrain_on(flat, tmp_path / "flat-run"))
    one = tmp_path / "one"
    shutil.copytree(images / "class-0", one / "train" / "class-0")
    assert "one class only" in refused(capsys, "doctor", pretrain_on(one, tmp_path / "one-run"))


def several_labels(images: Path, folder: Path) -> Path:
    paths = sorted(images.rglob("*.png"))
    lines = [f"{path},{'a|b' if i % 2 else 'a'}" for i, path in enumerate(paths)]
    (folder / "several.csv").write_text("\n".join(["path,label", *lines]))
    return folder / "several.csv"


def pretrain_on(source: Path, out: Path) -> Path:
    assert pretrain(source, out, "--epochs", "1", "--no-report") == 0
    return out
