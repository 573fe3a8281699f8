from __future__ import annotations

import csv
import json

import pytest

from vitling.errors import UserError
from vitling.evaluation.predict import predict


def test_csv_to_a_file(bundle, pictures, tmp_path):
    (pictures / "bad.png").write_bytes(b"")
    predict(bundle, [pictures], top=2, format="csv", out=tmp_path / "out.csv")
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


def test_table(bundle, pictures, capsys):
    (pictures / "bad[x].png").write_bytes(b"")
    answers = predict(bundle, [pictures])
    shown = capsys.readouterr().out
    assert answers[-1].label in shown
    assert "cannot be read" in shown


def test_no_readable_image_is_an_error(bundle, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"xx")
    with pytest.raises(UserError, match="None of 1 images"):
        predict(bundle, [tmp_path / "bad.png"])
    with pytest.raises(UserError, match="abstain"):
        predict(bundle, [tmp_path / "bad.png"], abstain=3)
