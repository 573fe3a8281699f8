"""`vitling inspect` of annotated data."""

from __future__ import annotations

import io
import json

from tests.data.annotations.made import HEIGHT, WIDTH, make_coco, pack, put_coco, put_masks
from tests.data.pictures import put, put_classes
from vitling import data
from vitling.console import Console
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.inspection_tables import print_inspection


def show(found) -> str:
    console = Console(width=140, file=io.StringIO())
    print_inspection(found, console)
    json.dumps(found.to_json())
    return console.file.getvalue()


def test_boxes_are_inspected(tmp_path):
    content = make_coco()
    content["annotations"][2]["bbox"] = [3, 3, 0, 5]
    put_coco(tmp_path / "data", content)
    put_coco(tmp_path / "data", make_coco(3, "val", first=10), "val")
    for spec in (tmp_path / "data", pack(tmp_path / "data")):
        found = data.inspect(spec)
        train = found.annotations["train"]
        assert found.task == "detect"
        assert found.splits["train"].images == 4
        assert found.splits["train"].width == (WIDTH, WIDTH, WIDTH)
        assert train.kind == "boxes and masks"
        assert train.classes == {"dog": 4, "cat": 3}
        assert (train.instances, train.crowds, train.empty) == (7, 1, 0)
        assert train.per_image == (1, 2, 2)
        assert train.problem_counts == {"empty box": 1}
        assert found.leakage  # the images of val are those of train
        text = show(found)
        assert "train2017/train001.png: empty box: annotation 2" in text
        assert "left out: empty box" in text
        assert found.to_json()["annotations"]["train"]["problems"][0]["what"] == "empty box: annotation 2"


def test_masks_are_inspected(tmp_path):
    put_masks(tmp_path, n=6, values=(0, 1, 2, 3))
    found = data.inspect(tmp_path, settings=AnnotationConfig(ignore_index=3))
    train = found.annotations["train"]
    assert found.task == "segment"
    assert train.kind == "semantic masks"
    assert train.instances is None
    pixels = 6 * HEIGHT * WIDTH
    assert sum(train.classes.values()) == round(pixels * (1 - train.ignored))
    assert 0.1 < train.ignored < 0.5
    assert "pixels without a class" in show(found)


def test_images_without_annotations_are_inspected_as_before(tmp_path):
    put_classes(tmp_path, {"images": 2, "other": 2})
    put(tmp_path / "other/x.png", 7)
    (tmp_path / "notes.json").write_text("no JSON")
    found = data.inspect(tmp_path)
    assert found.task == "single"
    assert found.annotations == {}
    assert found.splits["train"].classes == {"images": 2, "other": 3}


def test_only_a_test_split(tmp_path):
    put_masks(tmp_path, images="test/images", masks="test/masks")
    put_masks(tmp_path, images="val/images", masks="val/masks", n=1)
    found = data.inspect(tmp_path)
    assert found.splits["test"].images == 6
    assert found.splits["train"].images == 0
    show(found)
