"""`vitling embed --for`: tables in the form that other tools open."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import make_folder
from vitling.cli import run
from vitling.evaluation import load
from vitling.evaluation.tables import NEIGHBOURS, EmbeddedSplit, _locate, name_labels


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tables") / "images", classes=2, each=12)


def embed(bundle, images: Path, out: Path, tool: str) -> int:
    return run(["embed", str(bundle), str(images), "--out", str(out), "--for", tool])


def test_atlas_gets_parquet_with_a_struct_of_neighbours(bundle, images, tmp_path, capsys):
    assert embed(bundle, images, tmp_path / "a.parquet", "atlas") == 0
    assert f"embedding-atlas {tmp_path / 'a.parquet'} --x x --y y --neighbors neighbors" in capsys.readouterr().out
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert list(table) == ["id", "path", "split", "label", "prediction", "confidence", "x", "y", "neighbors"]
    assert all(Path(path).is_absolute() and Path(path).is_file() for path in table["path"])
    assert table["label"] == [Path(path).parent.name for path in table["path"]]
    model = load(bundle)
    vectors = model.embed(table["path"])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for i, near in enumerate(table["neighbors"]):
        distances = {j: 1 - float(unit[i] @ unit[j]) for j in range(24) if j != i}
        assert len(near["ids"]) == len(set(near["ids"])) == NEIGHBOURS
        np.testing.assert_allclose(near["distances"], sorted(distances.values())[:NEIGHBOURS], atol=1e-5)
        np.testing.assert_allclose(near["distances"], [distances[j] for j in near["ids"]], atol=1e-5)
    found = model.predict(table["path"])
    assert table["prediction"] == [one.label for one in found]
    np.testing.assert_allclose(table["confidence"], [one.probability for one in found], atol=1e-5)
    assert np.isfinite([table["x"], table["y"]]).all()


def test_fiftyone_gets_a_csv_with_file_paths(bundle, images, tmp_path, capsys):
    assert embed(bundle, images, tmp_path / "f.csv", "fiftyone") == 0
    assert f"CSVDataset, labels_path={str(tmp_path / 'f.csv')!r})" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "f.csv").open()))
    assert len(rows) == 24
    assert all(Path(row["filepath"]).is_file() for row in rows)
    assert {float(row["confidence"]) <= 1 for row in rows} == {True}
    assert all(Path(path).is_file() for path in rows[0]["neighbours"].split("|"))


def test_spotlight_gets_embeddings_too(bundle, images, tmp_path):
    assert embed(bundle, images, tmp_path / "s.parquet", "spotlight") == 0
    table = pq.read_table(tmp_path / "s.parquet").to_pydict()
    np.testing.assert_allclose(table["embedding"], load(bundle).embed(table["path"]), atol=1e-5)
    assert table["neighbours"][0][0] in table["path"]


def test_other_endings_and_single_images_are_refused(bundle, images, tmp_path, capsys):
    assert embed(bundle, images, tmp_path / "x.npz", "atlas") == 2
    assert "must end in .parquet with --for atlas" in capsys.readouterr().err
    one = sorted(images.rglob("*.png"))[0]
    assert embed(bundle, one, tmp_path / "x.csv", "fiftyone") == 2
    assert "at least two images" in capsys.readouterr().err


def test_labels_in_words_and_images_without_a_file(tmp_path):
    def name(labels):
        return name_labels(EmbeddedSplit("train", ["a"] * 2, np.zeros((2, 1)), labels, ("x", "y"), {}))

    assert name(None) == [None, None]
    assert name(np.array([1, 0])) == ["y", "x"]
    assert name(np.array([[True, True], [False, False]])) == [["x", "y"], []]
    assert _locate("embedded:digits", "digits[3]") == "digits[3]"
    (tmp_path / "table.csv").write_text("")
    (tmp_path / "a.png").write_text("")
    assert _locate(str(tmp_path / "table.csv"), "a.png") == str((tmp_path / "a.png").resolve())
