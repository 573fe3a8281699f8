"""--labels: corrected labels from a CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_folder
from vitling.data.config import DataConfig
from vitling.data.inspection import inspect
from vitling.data.sources import read_source
from vitling.errors import UserError


def write(path: Path, *rows: str, header: str = "path,label") -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def read_labels(source: Path | str, labels: str, split: str = "train") -> dict[str, tuple[str, ...]]:
    part = read_source(str(source), DataConfig(), labels).splits[split]
    assert part.labels is not None
    return dict(zip(part.keys, part.labels))


def refuse(source: Path | str, labels: str) -> str:
    with pytest.raises(UserError) as problem:
        read_source(str(source), DataConfig(), labels)
    return str(problem.value)


def test_labels_change_and_images_are_left_out(folder, tmp_path):
    labels = write(
        tmp_path / "corrected.csv",
        "class-0/image-00.png,class-2",
        "class-0/image-01.png,",
        "class-1/image-00.png,drop",
        "class-2/image-00.png,class-2",
    )
    found = read_labels(folder, labels)
    assert len(found) == 28
    assert found["class-0/image-00.png"] == ("class-2",)
    assert {"class-0/image-01.png", "class-1/image-00.png"}.isdisjoint(found)
    others = [key for key in found if key != "class-0/image-00.png"]
    assert all(found[key] == (key.split("/")[0],) for key in others)
    notes = read_source(str(folder), DataConfig(), labels).notes
    assert f"{labels}: 1 label changed, 2 images left out." in notes


def test_other_columns_and_the_separator_of_a_spreadsheet_are_accepted(folder, tmp_path):
    labels = write(tmp_path / "a.csv", "1;class-0/image-00.png;class-1;seen", header="row;path;label;remark")
    assert read_labels(folder, labels)["class-0/image-00.png"] == ("class-1",)


def test_a_class_may_be_called_drop(tmp_path):
    root = make_folder(tmp_path / "images", classes=2, each=2)
    (root / "class-1").rename(root / "drop")
    labels = write(tmp_path / "a.csv", "class-0/image-00.png,drop")
    assert read_labels(root, labels)["class-0/image-00.png"] == ("drop",)


def test_unknown_paths_and_classes_are_named_and_counted(folder, tmp_path):
    message = refuse(folder, write(tmp_path / "a.csv", "class-0/none.png,class-1", "x.png,class-1"))
    assert "names 2 images not among the labelled images" in message
    assert "class-0/none.png, x.png" in message
    assert "class-0/image-00.png" in message  # how paths look
    message = refuse(folder, write(tmp_path / "b.csv", "class-0/image-00.png,clas-1", "class-0/image-01.png,clas-1"))
    assert '"clas-1" (2)' in message
    assert "class-0, class-1, class-2" in message


def test_different_labels_for_one_image_are_refused(folder, tmp_path):
    rows = ("class-0/image-00.png,class-1", "class-0/image-00.png,class-2")
    assert "different labels" in refuse(folder, write(tmp_path / "a.csv", *rows))
    assert read_labels(folder, write(tmp_path / "a.csv", rows[0], rows[0]))["class-0/image-00.png"] == ("class-1",)


def test_a_path_in_two_splits_needs_a_split(tmp_path):
    first, second = (make_folder(tmp_path / name, classes=2, each=2) for name in ("a", "b"))
    source = f"train={first},test={second}"
    row = "class-0/image-00.png,class-1"
    assert "column split" in refuse(source, write(tmp_path / "a.csv", row))
    labels = write(tmp_path / "b.csv", f"{row},train", header="path,label,split")
    assert read_labels(source, labels)["class-0/image-00.png"] == ("class-1",)
    assert read_labels(source, labels, "test")["class-0/image-00.png"] == ("class-0",)


def test_data_without_single_labels_is_refused(tmp_path):
    root = make_folder(tmp_path / "images", classes=1, each=3)
    flat = root / "class-0"
    labels = write(tmp_path / "a.csv", "image-00.png,class-1")
    assert "no labels to correct" in refuse(flat, labels)
    several = tmp_path / "several.csv"
    write(several, "images/class-0/image-00.png,a|b", "images/class-0/image-01.png,a")
    assert "several labels each" in refuse(several, labels)


def test_wrong_files_are_refused(folder, tmp_path):
    assert "cannot be read" in refuse(folder, str(tmp_path / "none.csv"))
    assert "has no column label" in refuse(folder, write(tmp_path / "a.csv", "x.png", header="path"))
    assert "has no column path" in refuse(folder, write(tmp_path / "b.csv", "x.png,a", header="file,label"))


def test_inspect_counts_corrected_labels(folder, tmp_path):
    labels = write(tmp_path / "corrected.csv", "class-0/image-00.png,class-1", "class-2/image-00.png,drop")
    found = inspect(folder, labels=labels)
    assert found.splits["train"].classes == {"class-0": 9, "class-1": 11, "class-2": 9}


def test_names_that_begin_like_a_formula_are_read_back(tmp_path):
    """suspects.csv has ' before them."""
    root = make_folder(tmp_path / "images", classes=2, each=1)
    (root / "class-0").rename(root / "=sum")
    labels = write(tmp_path / "corrected.csv", "class-1/image-00.png,'=sum", "'=sum/image-00.png,class-1")
    assert read_labels(root, labels) == {"class-1/image-00.png": ("=sum",), "=sum/image-00.png": ("class-1",)}
