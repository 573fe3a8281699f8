"""COCO's JSON: what it gives, and what is wrong with it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pycocotools import mask as pycoco

from tests.data.annotations.made import HEIGHT, WIDTH, make_coco, pack, put_coco
from vitling.data.annotations import build, semantic
from vitling.data.annotations.instances import Instances
from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.rle import decode_mask, write_runs
from vitling.data.annotations.split import IGNORE, count_problems
from vitling.errors import UserError


@pytest.fixture
def content():
    return make_coco()


def open_train(root, content, **options):
    put_coco(root, content)
    return open_annotated(str(root), "detect", val="none", **options)["train"]


def test_instances_are_read(tmp_path, content):
    split = open_train(tmp_path, content)
    assert split.class_names == ("dog", "cat")  # by category id
    assert split.dataset.keys == [f"train2017/train{i:03}.png" for i in range(4)]
    assert split.sizes.tolist() == [[HEIGHT, WIDTH]] * 4
    assert split.counts.tolist() == [[1, 1]] * 4
    found = split.instances
    assert found.offsets.tolist() == [0, 2, 4, 6, 8]
    assert found.classes.tolist() == [1, 0] * 4
    assert found.crowd.tolist() == [False, True] + [False] * 6
    np.testing.assert_allclose(found.boxes[0], [2 / WIDTH, 4 / HEIGHT, 22 / WIDTH, 14 / HEIGHT])
    expected = pycoco.decode(pycoco.frPyObjects(content["annotations"][0]["segmentation"], HEIGHT, WIDTH))[..., 0]
    np.testing.assert_array_equal(decode_mask(found.segments[0]), expected)
    assert found.areas[:2].tolist() == [expected.sum(), 20]
    mask = np.zeros((HEIGHT, WIDTH))
    mask[5:15, 30:32] = 1
    np.testing.assert_array_equal(decode_mask(found.segments[1]), mask)
    assert not split.problems


def test_splits_come_from_the_names_of_the_files(tmp_path, content):
    put_coco(tmp_path / "data", content)
    put_coco(tmp_path / "data", make_coco(3, "val", first=10), "val")
    for spec in (tmp_path / "data", pack(tmp_path / "data")):
        splits = open_annotated(str(spec), "detect")
        assert [len(splits[name]) for name in ("train", "val")] == [4, 3]
        assert splits["test"] is None
        assert splits["val"].dataset.read(0) == (tmp_path / "data/val2017/val010.png").read_bytes()


def test_a_single_file_can_be_named(tmp_path, content):
    put_coco(tmp_path, content, name="labels.json")
    split = open_annotated(str(tmp_path / "labels.json"), "detect", val="none")["train"]
    assert len(split) == 4


def test_a_folder_may_have_only_val_and_a_file_is_train_whatever_its_name(tmp_path):
    put_coco(tmp_path, make_coco(3, "val"), "val")
    splits = open_annotated(str(tmp_path), "detect", needs_train=False)
    assert {name: split and len(split) for name, split in splits.items()} == {"train": None, "val": 3, "test": None}
    with pytest.raises(UserError, match="its splits are val"):
        open_annotated(str(tmp_path), "detect")
    file = tmp_path / "annotations/instances_val2017.json"
    assert len(open_annotated(str(file), "detect", val="none")["train"]) == 3


def test_named_splits_share_the_classes_of_train(tmp_path, content):
    put_coco(tmp_path / "a", content)
    other = make_coco(2)
    other["categories"] = [{"id": 7, "name": "cow"}, {"id": 3, "name": "dog"}]
    put_coco(tmp_path / "b", other)
    splits = open_annotated(f"train={tmp_path / 'a'},test={tmp_path / 'b'}", "detect", val="none")
    assert splits["test"].class_names == ("dog", "cat")
    assert count_problems(splits["test"].problems) == {"unknown category": 2}


def test_val_is_held_out(tmp_path):
    put_coco(tmp_path, make_coco(20))
    splits = open_annotated(str(tmp_path), "detect")
    assert (len(splits["train"]), len(splits["val"])) == (18, 2)
    assert "held out" in splits["train"].notes[0]
    assert not {*splits["train"].dataset.keys} & {*splits["val"].dataset.keys}


def test_val_of_the_data_joins_train_if_asked(tmp_path, content):
    put_coco(tmp_path / "data", content)
    put_coco(tmp_path / "data", make_coco(3, "val", first=10), "val")
    one = open_annotated(str(tmp_path / "data"), "detect", val="none")
    put_coco(tmp_path / "a", content)
    put_coco(tmp_path / "b", make_coco(3, "val", first=10), "val")
    two = open_annotated(f"train={tmp_path / 'a'},val={tmp_path / 'b'}", "detect", val="none")
    for splits in (one, two):
        train = splits["train"]
        assert splits["val"] is None
        assert len(train) == 7
        assert train.dataset.read(5) == (tmp_path / "b/val2017/val011.png").read_bytes()
        assert train.instances.offsets.tolist() == list(range(0, 15, 2))
        assert len(train.instances.crop_masks(3)) == 14
        assert "3 images" in train.notes[-1]
    masks = open_annotated(str(tmp_path / "data"), "segment", val="0.5")
    assert len(masks["train"]) + len(masks["val"]) == 7
    assert masks["val"].read_mask(0).shape == (HEIGHT, WIDTH)


def test_a_val_split_without_instances_joins_train(tmp_path, content):
    put_coco(tmp_path, content)
    put_coco(tmp_path, make_coco(3, "val", first=10) | {"annotations": []}, "val")
    train = open_annotated(str(tmp_path), "detect", val="none")["train"]
    assert len(train) == 7
    assert train.instances.offsets.tolist() == [0, 2, 4, 6, 8, 8, 8, 8]
    assert len(train.instances.segments) == 8


def test_semantic_masks_are_painted_from_instances(tmp_path, content):
    put_coco(tmp_path, content)
    split = open_annotated(str(tmp_path), "segment", val="none")["train"]
    assert split.class_names == ("background", "dog", "cat")
    mask = split.read_mask(0)
    assert mask[10, 31] == 1
    assert mask[8, 10] == 2
    assert mask[30, 30] == 0
    assert split.counts[0].tolist() == [(mask == k).sum() for k in range(3)]
    assert split.take([2, 0]).read_mask(1).tolist() == mask.tolist()


def test_many_small_instances_on_a_large_image_are_painted_quickly():
    side, n = 4000, 500
    starts = np.arange(n) * side * 8
    runs = [write_runs(np.array([start, 7, side**2 - start - 7]), side, side) for start in starts]
    columns = np.zeros(n)
    instances = Instances(np.array([0, n]), np.zeros((n, 4)), columns.astype(int), columns > 0, columns + 7, runs)
    began = time.process_time()
    mask = semantic.Painter(["a"], instances, np.array([[side, side]]), {})(0)
    assert time.process_time() - began < 5  # decoding every mask takes 30 s
    assert mask[:7, ::8].all()
    assert mask.sum() == 7 * n


@pytest.mark.parametrize("broken", [False, True])
def test_annotations_that_cover_an_image_too_often_are_refused(tmp_path, content, broken, monkeypatch):
    monkeypatch.setattr(semantic, "MAX_PAINTED", 10 * WIDTH * HEIGHT)
    whole = {"image_id": 0, "bbox": [0, 0, WIDTH, HEIGHT], "segmentation": {"size": [HEIGHT, WIDTH]}}
    whole["segmentation"]["counts"] = [1] if broken else [0, WIDTH * HEIGHT]
    content["annotations"] += [{"id": 100 + k, "category_id": 3, **whole} for k in range(9)]
    put_coco(tmp_path, content)
    open_annotated(str(tmp_path), "segment", val="none")
    content["annotations"] += [{"id": 200, "category_id": 3, **whole}]
    put_coco(tmp_path, content)
    with pytest.raises(UserError, match=r"train000\.png: its annotations overlap too often"):
        open_annotated(str(tmp_path), "segment", val="none")


@pytest.mark.parametrize("changed", [{"segmentation": []}, {"segmentation": [[1, 2, 3]]}, {"category_id": 5}])
def test_the_box_of_an_annotation_left_out_is_no_background(tmp_path, content, changed):
    content["annotations"][2].update(bbox=[20.5, 4, 20, 10], **changed)  # around the dog of the second image
    content["categories"].append({"id": 5, "name": "cow"})
    put_coco(tmp_path, content)
    names = ("background", "dog", "cat")
    split = open_annotated(str(tmp_path), "segment", val="none", class_names=names)["train"]
    expected = np.zeros((HEIGHT, WIDTH))
    expected[4:14, 20:41] = IGNORE
    expected[5:15, 30:32] = 1
    np.testing.assert_array_equal(split.read_mask(1), expected)
    assert split.counts[1].tolist() == [(expected == k).sum() for k in range(3)]
    assert len(split.problems) == 1


@pytest.mark.parametrize("segmentation", [[], [[1, 2, 3]]])
def test_boxes_without_a_mask_are_kept_if_masks_are_not_wanted(tmp_path, content, segmentation):
    content["annotations"][0]["segmentation"] = segmentation
    split = open_train(tmp_path, content, with_masks=False)
    assert not split.problems
    assert len(split.instances) == 8
    assert split.instances.segments is None
    np.testing.assert_allclose(split.instances.boxes[0], [2 / WIDTH, 4 / HEIGHT, 22 / WIDTH, 14 / HEIGHT])


def test_classes_of_a_model_begin_with_the_background_in_painted_masks(tmp_path, content):
    put_coco(tmp_path, content)
    names = ("background", "cat", "dog")
    split = open_annotated(str(tmp_path), "segment", val="none", class_names=names)["train"]
    assert split.class_names == names
    assert not split.problems
    with pytest.raises(UserError, match=r"\(road, cat, dog\) come from masks without a background"):
        open_annotated(str(tmp_path), "segment", val="none", class_names=("road", "cat", "dog"))


def change(key, **values):
    return lambda content: content[key][0].update(values)


BROKEN = {
    "empty box": change("annotations", bbox=[3, 3, 0, 5]),
    "inverted box": change("annotations", bbox=[3, 3, -4, 5]),
    "box that is not a number": change("annotations", bbox=[float("nan"), 3, 4, 5]),
    "box outside of the image": change("annotations", bbox=[100, 3, 4, 5]),
    "unknown category": change("annotations", category_id=9),
    "unknown image": change("annotations", image_id=99),
    "unreadable annotation": change("annotations", bbox=["a"]),
    "broken polygon": change("annotations", segmentation=[[1, 2, 3]]),
    "polygon outside of the image": change("annotations", segmentation=[[1, 2, 3, 4, 1e9, 5]]),
    "polygon with an outline of more than 4,000,000 pixels": change(
        "annotations", segmentation=[[0, 0, WIDTH, HEIGHT] * 90_000]
    ),
    "empty mask": change("annotations", segmentation={"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]}),
    "mask of another size": change("annotations", segmentation={"size": [2, 2], "counts": [4]}),
    "RLE that does not fill 48 x 32 pixels": change("annotations", segmentation={"size": [32, 48], "counts": "00"}),
    "RLE that does not fill 48 x 32 pixels ": change(
        "annotations", segmentation={"size": [32, 48], "counts": [2**62] * 4 + [HEIGHT * WIDTH]}
    ),
    "no mask": change("annotations", segmentation=[]),
    "no box": change("annotations", segmentation=None, bbox=None),
    "duplicate id": change("annotations", id=1),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_annotations_are_named_and_left_out(tmp_path, content, what):
    BROKEN[what](content)
    split = open_train(tmp_path, content)
    assert count_problems(split.problems) == {what.strip(): 1}
    assert len(split) == 4
    assert len(split.instances) == 7


def test_broken_images_are_named_and_left_out(tmp_path, content):
    content["images"][0]["file_name"] = "gone.png"
    content["images"][1]["width"] = 99
    content["images"].append(dict(content["images"][2]))
    put_coco(tmp_path, content)
    (tmp_path / "train2017/train003.png").write_bytes(b"no image")
    split = open_annotated(str(tmp_path), "detect", val="none")["train"]
    kinds = ["missing image", "image of another size", "duplicate id", "unreadable image"]
    assert count_problems(split.problems) == dict.fromkeys(kinds, 1)
    assert split.dataset.keys == ["train2017/train002.png"]
    assert len(split.instances) == 2


def test_boxes_without_masks_are_enough(tmp_path, content):
    for annotation in content["annotations"]:
        del annotation["segmentation"]
    split = open_train(tmp_path, content)
    assert split.instances.segments is None
    assert split.instances.areas[0] == 200
    with pytest.raises(UserError, match="vitling detect"):
        open_annotated(str(tmp_path), "segment")


def test_data_without_usable_images_is_refused(tmp_path, content):
    for image in content["images"]:
        image["file_name"] = "gone.png"
    with pytest.raises(UserError, match=r"gone\.png: missing image"):
        open_train(tmp_path, content)


def test_data_without_usable_annotations_is_refused(tmp_path, content):
    content["categories"] = []
    with pytest.raises(UserError, match="unknown category: 7 of annotation 0"):
        open_train(tmp_path, content)
    content["annotations"] = []
    with pytest.raises(UserError, match=r"No image of .* can be used \(none\)"):
        open_train(tmp_path, content)
    assert len(open_train(tmp_path, content, needs_train=False)) == 4


def test_names_that_lead_elsewhere_are_found_by_their_ending(tmp_path, content):
    content["images"][0]["file_name"] = "C:\\photos\\train000.png"
    content["images"][1]["file_name"] = "../../train001.png"
    put_coco(tmp_path, make_coco())
    assert len(open_train(tmp_path, content)) == 4


def test_an_image_with_too_many_annotations_is_left_out_and_named(tmp_path, content, monkeypatch):
    monkeypatch.setattr(build, "MAX_INSTANCES", 4)
    first = content["annotations"][0]
    content["annotations"] += [{**first, "id": 100 + i} for i in range(4)]
    split = open_train(tmp_path, content)
    assert len(split.dataset) == 3
    assert count_problems(split.problems) == {"image with more than 4 annotations; cut it into tiles": 1}
