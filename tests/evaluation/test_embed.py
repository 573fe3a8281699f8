from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitling.data.dataset import Dataset, Splits
from vitling.errors import UserError
from vitling.evaluation import load
from vitling.evaluation.embed import embed


def make_splits(pictures, labels, class_names):
    files = sorted(pictures.rglob("*.png")) + sorted(pictures.rglob("*.jpg"))
    train = Dataset("pets", [f.name for f in files], lambda i: files[i].read_bytes(), np.arange(6), labels, class_names)
    pool = Dataset("pets", ["extra"], lambda i: files[0].read_bytes(), np.arange(1))
    return Splits(train.take([0, 1, 2]), pool=pool, hidden_test=train.take([3, 4, 5]))


def test_loose_images(bundle, pictures, tmp_path):
    (pictures / "bad.png").write_bytes(b"")
    errors = embed(bundle, [str(pictures / "*.png"), str(pictures / "deeper" / "0.jpg")], tmp_path / "f.npz")
    assert list(errors.values()) == ["empty file"]
    written = np.load(tmp_path / "f.npz")
    assert written["embeddings"].shape == (4, 128)
    assert "labels" not in written
    assert np.allclose(written["embeddings"][0], load(bundle).embed(written["keys"][0]), atol=1e-5)


def test_dataset_with_splits_and_labels(bundle, pictures, tmp_path, monkeypatch):
    splits = make_splits(pictures, np.array([0, 1, 0, 1, 0, 1]), ("cat", "dog"))
    opened = []
    splits.on_test_opened = opened.append
    monkeypatch.setattr("vitling.evaluation.embed.read_splits", lambda spec, config, **how: splits)
    embed(bundle, "pets", tmp_path / "f.npz")
    written = np.load(tmp_path / "f.npz")
    assert written["labels"].tolist() == [0, 1, 0, -1, 1, 0, 1]
    assert written["split"].tolist() == ["train"] * 3 + ["unlabelled"] + ["test"] * 3
    assert opened == ["embed"]
    embed(bundle, "pets", tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    assert table["label"] == ["cat", "dog", "cat", None, "dog", "cat", "dog"]
    assert np.allclose(table["embedding"], written["embeddings"])


def test_folder_of_classes(bundle, tmp_path):
    draw = np.random.default_rng(0)
    for split, each in (("train", 3), ("test", 2)):
        for name in ("cat", "dog"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            for i in range(each):
                pixels = draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pets" / split / name / f"{i}.png")
    assert embed(bundle, str(tmp_path / "pets"), tmp_path / "f.npz") == {}
    written = np.load(tmp_path / "f.npz")
    assert written["labels"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert written["split"].tolist() == ["train"] * 6 + ["test"] * 4
    assert written["class_names"].tolist() == ["cat", "dog"]


def test_unlabelled_images_before_the_labelled_ones(bundle, pictures, tmp_path, monkeypatch):
    splits = make_splits(pictures, np.array([0, 1, 0, 1, 0, 1]), ("cat", "dog"))
    splits.train = splits.train.take([])
    monkeypatch.setattr("vitling.evaluation.embed.read_splits", lambda spec, config, **how: splits)
    embed(bundle, "pets", tmp_path / "f.npz")
    written = np.load(tmp_path / "f.npz")
    assert written["split"].tolist() == ["unlabelled"] + ["test"] * 3
    assert written["labels"].tolist() == [-1, 1, 0, 1]
    assert written["class_names"].tolist() == ["cat", "dog"]


def test_multi_label(bundle, pictures, tmp_path, monkeypatch):
    labels = np.array([[1, 0], [1, 1], [0, 0]] * 2, dtype=bool)
    splits = make_splits(pictures, labels, ("cat", "dog"))
    monkeypatch.setattr("vitling.evaluation.embed.read_splits", lambda spec, config, **how: splits)
    embed(bundle, "pets", tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    assert table["label"][:4] == [["cat"], ["cat", "dog"], [], None]


def test_unknown_format_is_refused(bundle, tmp_path):
    with pytest.raises(UserError, match=r"\.npz or \.parquet"):
        embed(bundle, "x", tmp_path / "f.csv")
