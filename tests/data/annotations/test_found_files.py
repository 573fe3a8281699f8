"""Annotation files and images found by their names."""

from __future__ import annotations

import pytest

from tests.data.annotations.made import make_coco, put_coco
from tests.data.annotations.test_label_files import put_export, region
from tests.data.pictures import put
from vitling.data.annotations import files as annotation_files
from vitling.data.annotations.files import Files, open_files, split_words
from vitling.data.annotations.open import open_annotated
from vitling.errors import UserError


def list_files(*names: str) -> Files:
    return Files("data", list(names), lambda row: b"")


@pytest.mark.parametrize("folder", ["", "annotations/"])
def test_the_named_file_is_opened_and_no_other_of_the_same_ending(tmp_path, folder):
    for name in ("1.json", f"{folder}1.json", f"{folder}11.json", f"{folder}a 11.json"):
        put_coco(tmp_path, make_coco(), name=name)
    for name in ("1.json", "11.json", "a 11.json"):
        assert open_files(str(tmp_path / folder / name))[1] == folder + name


def test_a_hidden_file_is_refused(tmp_path):
    put_coco(tmp_path, make_coco(), name=".labels.json")
    with pytest.raises(UserError, match=r"\.labels\.json is hidden.*Rename it"):
        open_annotated(str(tmp_path / ".labels.json"), "detect")


FOUND = {
    "a/1.png": "photos/a/1.png",
    "/home/me/photos/a/1.png": "photos/a/1.png",
    "C:\\data\\photos\\b\\1.png": "photos/b/1.png",
    "../photos/b/1.png": "photos/b/1.png",
    "c/1.png": None,  # either would be a guess
    "c/2.png": "photos/a/2.png",  # the only one
    "1.png": "photos/b/1.png",  # nearest to the annotation file
}


@pytest.mark.parametrize(("name", "image"), FOUND.items())
def test_images_are_not_found_in_other_folders_than_the_named_one(name, image):
    files = list_files("photos/a/1.png", "photos/b/1.png", "photos/a/2.png", "labels/b.json")
    assert files.find_image(name, near="labels/b.json") == image


def test_the_longest_path_that_ends_the_name_is_found():
    files = list_files("a/1.png", "b/a/1.png", "labels.json")
    assert files.find_image("/data/b/a/1.png", near="labels.json") == "b/a/1.png"
    assert files.find_image("/data/c/a/1.png", near="labels.json") == "a/1.png"


VIDEOS = 1000  # more than MAX_NAMESAKES


@pytest.fixture
def compared(monkeypatch):
    """Count the paths that are compared word by word."""
    counted = []

    def count(path):
        counted.append(path)
        return split_words(path)

    monkeypatch.setattr(annotation_files, "split_words", count)
    return counted


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("v17/000.png", "data/images/v17/000.png"),
        ("/home/me/data/images/v17/000.png", "data/images/v17/000.png"),
        ("gone17/000.png", None),
        ("000.png", None),  # one of very many
    ],
)
def test_many_images_of_one_name_are_not_all_compared(name, image, compared):
    """Frames of videos, for example. The time was the square of their number."""
    files = list_files("labels.json", *(f"data/images/v{i}/000.png" for i in range(VIDEOS)))
    for _ in range(VIDEOS):
        assert files.find_image(name, near="labels.json") == image
    assert len(compared) <= 2 * VIDEOS


def test_many_folders_with_annotations_of_their_own(compared):
    images = [f"seq{i}/frames/000.png" for i in range(VIDEOS)]
    files = list_files(*images)
    for i, image in enumerate(images):
        assert files.find_image("000.png", near=f"seq{i}/annotations/coco.json") == image
        assert files.find_image("frames/000.png", near=f"seq{i}/coco.json") == image
        assert files.find_partner(f"seq{i}/annotations/000.xml") == image
    assert len(compared) <= 6 * VIDEOS


def test_many_partners_of_one_name(compared):
    images = [f"images/v{i}/000.png" for i in range(VIDEOS)]
    files = list_files(*images, "v1/000.png", "images/twin/000.png", "images/twin/000.jpg")
    assert [files.find_partner(f"annotations/v{i}/000.xml") for i in range(2, VIDEOS)] == images[2:]
    assert files.find_partner("v1/000.xml") == "v1/000.png"  # beside it
    assert files.find_partner("annotations/v1/000.xml") is None  # either would be a guess
    assert files.find_partner("annotations/twin/000.xml") is None
    assert files.find_partner("annotations/gone/000.xml") is None
    assert len(compared) <= 2 * VIDEOS


def test_names_with_very_many_folders():
    deep = "/".join("abcdefghi")
    files = list_files("1.png", f"{deep}/1.png", f"x/{deep}/2.png", f"y/{deep}/2.png")
    assert files.find_image(f"/home/me/{deep}/1.png", near="labels.json") == f"{deep}/1.png"
    assert files.find_image(f"x/{deep}/2.png", near="labels.json") == f"x/{deep}/2.png"
    assert files.find_image(f"z/{deep}/2.png", near="labels.json") is None


def test_label_studio_does_not_drop_the_folder_of_a_name(tmp_path):
    put(tmp_path / "other/a.png", 2, 48, 32)
    put_export(tmp_path, region("rectanglelabels", x=0, y=0, width=50, height=50), url="s3://bucket/gone/a.png")
    with pytest.raises(UserError, match=r"a\.png: missing image"):
        open_annotated(str(tmp_path / "export.json"), "detect", val="none")
