from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.made_runs import refused
from vitling.cli import run
from vitling.errors import UserError
from vitling.evaluation import load, save_bundle
from vitling.evaluation.export import export
from vitling.evaluation.familiarity import calibrate_familiarity, fit_familiarity, make_signals, summarise_images
from vitling.evaluation.inputs import list_sources
from vitling.evaluation.predict import predict
from vitling.evaluation.trust import Trust


def test_csv_to_a_file(bundle, pictures, tmp_path):
    (pictures / "bad.png").write_bytes(b"")
    predict(bundle, [pictures], top=2, out=tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == 7
    assert [row["error"] for row in rows if row["error"]] == ["empty file"]
    assert all(value is not None for row in rows for value in row.values())  # every row has all columns
    good = next(row for row in rows if not row["error"])
    assert good["answer"] == good["class_1"]
    assert float(good["probability_1"]) >= float(good["probability_2"])


def test_json_to_the_terminal(bundle, pictures, capsys):
    predict(bundle, [pictures / "0.png"], format="json", abstain=1.0)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["answer"] == "(unsure)"
    assert row["unsure"] is True
    assert row["file"].endswith("0.png")
    assert {"class", "probability"} == row["top"][0].keys()


@pytest.mark.parametrize(("name", "start"), [("out.CSV", "file,answer"), ("out.json", "["), ("out.txt", "file  ")])
def test_suffix_decides_the_format(bundle, pictures, tmp_path, monkeypatch, name, start):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    predict(bundle, [pictures], out=tmp_path / name)
    text = (tmp_path / name).read_text()
    assert "\x1b" not in text  # no colours of a terminal in a file
    assert text.lstrip().startswith(start)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_predictions_replace_predictions_and_nothing_else(bundle, pictures, tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    for _ in range(2):
        predict(bundle, [pictures], out=out)
    labels = tmp_path / f"labels{suffix}"
    labels.write_text("file,label\n0.png,cat\n")
    with pytest.raises(UserError, match="does not contain predictions"):
        predict(bundle, [pictures], out=labels)
    assert labels.read_text().endswith("cat\n")


def test_table(bundle, pictures, capsys):
    (pictures / "bad[x].png").write_bytes(b"")
    answers = predict(bundle, [pictures])
    shown = capsys.readouterr().out
    assert answers[-1].label in shown
    assert "cannot be read" in shown


def test_scores_of_detections_are_refused_for_classifiers(bundle, pictures, capsys):
    assert run(["predict", str(bundle), str(pictures), "--min-score", "0.9"]) == 2
    assert "--min-score is for models of detect" in capsys.readouterr().err


def test_photos_that_cannot_be_read_are_named_and_counted(bundle, pictures, capsys):
    for name in ("a.HEIC", "b.heic"):
        (pictures / name).write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0")
    answers = predict(bundle, [pictures], format="json")
    assert len(answers) == 8
    assert [Path(answer.source).name for answer in answers if answer.error] == ["a.HEIC", "b.heic"]
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)) == 8
    message = shown.err.replace("\n", " ")
    assert "2 of 8 images could not be read" in message
    assert "a.HEIC" in message


def test_no_readable_image_is_an_error(bundle, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"xx")
    with pytest.raises(UserError, match="None of the images"):
        predict(bundle, [tmp_path / "bad.png"])
    with pytest.raises(UserError, match="abstain"):
        predict(bundle, [tmp_path / "bad.png"], abstain=3)


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_outputs_that_overflow_are_refused(bundle, pictures, tmp_path, capsys, command):
    weights = load_file(bundle / "model.safetensors")
    save_file({name: torch.full_like(value, 3e38) for name, value in weights.items()}, bundle / "model.safetensors")
    out = ["--out", tmp_path / "out.npz"] if command == "embed" else []
    assert "not finite" in refused(capsys, command, bundle, pictures, *out)


@pytest.fixture
def trusted(bundle, pictures):
    """A model that knows 0.png only, with the scores of 40 images."""
    model = load(bundle)
    (batch,) = model.batches(list_sources([pictures / "0.png"]))
    with torch.inference_mode():
        features = model.backbone(batch.images)
        seen = summarise_images(batch.images, features.grid)
        known = fit_familiarity(seen)
        signals = make_signals(known.measure_distances(seen), model.head(features.pooled) / model.meta.temperature)
    trust = Trust(torch.linspace(0, 1.5, 40), calibrate_familiarity(known, signals + 1e-3))
    save_bundle(bundle, model.backbone, model.head, model.meta, trust)
    return bundle


def test_unfamiliar_images_and_prediction_sets(trusted, pictures, tmp_path, capsys):
    (pictures / "bad.png").write_bytes(b"")
    export(trusted, tmp_path / "exported")
    for model in (trusted, tmp_path / "exported"):
        predict(model, [pictures], format="csv", coverage=0.9, out=tmp_path / "out.csv")
        rows = {row["file"].rpartition("/")[2]: row for row in csv.DictReader((tmp_path / "out.csv").open())}
        assert rows["0.png"]["unfamiliar"] == "false"
        assert rows["1.png"]["unfamiliar"] == "true"
        assert rows["bad.png"]["unfamiliar"] == rows["bad.png"]["prediction_set"] == ""
        assert rows["0.png"]["prediction_set"].split("|")[0] == rows["0.png"]["class_1"]
    predict(trusted, [pictures], format="json", coverage=0.9)
    by_name = {row["file"].rpartition("/")[2]: row for row in json.loads(capsys.readouterr().out)}
    assert by_name["1.png"]["unfamiliar"] is True
    assert by_name["1.png"]["prediction_set"][0] == by_name["1.png"]["top"][0]["class"]
    predict(trusted, [pictures], coverage=0.9)
    shown = capsys.readouterr().out
    assert "unfamiliar" in shown
    assert "prediction" in shown


def test_models_without_scores_cannot_make_sets(bundle, make_bundle, pictures, tmp_path, capsys):
    predict(bundle, [pictures / "0.png"], format="json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row["unfamiliar"] is None
    with pytest.raises(UserError, match="no scores of held-out images"):
        predict(bundle, [pictures], coverage=0.9)
    with pytest.raises(UserError, match="between 0 and 1"):
        predict(bundle, [pictures], coverage=90)
    make_bundle(tmp_path / "several", task="multi")
    with pytest.raises(UserError, match="one class per image"):
        predict(tmp_path / "several", [pictures], coverage=0.9)


def test_predictions_for_a_closed_output_are_discarded(bundle, pictures, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["predict", str(bundle), str(pictures / "0.png")]) == 0
