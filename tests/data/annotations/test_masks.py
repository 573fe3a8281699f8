"""Folders of semantic masks."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tests.data.annotations.made import HEIGHT, WIDTH, draw_mask, pack, put_mask, put_masks
from tests.data.pictures import put
from vitling.data.annotations.config import AnnotationConfig
from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.split import compare_classes, count_problems
from vitling.errors import UserError


def open_train(root, **settings):
    return open_annotated(str(root), "segment", AnnotationConfig(**settings), val="none")["train"]


LAYOUTS = [
    ("images", "masks"),
    ("train/images", "train/masks"),
    ("images/train", "masks/train"),
    ("JPEGImages", "SegmentationClass"),
]


@pytest.mark.parametrize(("images", "masks"), LAYOUTS)
def test_masks_are_paired_with_images(tmp_path, images, masks):
    put_masks(tmp_path / "data", images=images, masks=masks)
    for spec in (tmp_path / "data", pack(tmp_path / "data")):
        split = open_train(spec)
        assert split.class_names == ("class 0", "class 1", "class 2")
        assert len(split) == 6
        for i in range(6):
            np.testing.assert_array_equal(split.read_mask(i), draw_mask(i))
            np.testing.assert_array_equal(split.counts[i], np.bincount(draw_mask(i).ravel(), minlength=3))
        assert not split.problems


def test_splits_and_endings_of_names(tmp_path):
    put_masks(tmp_path, images="train/images", masks="train/masks")
    put(tmp_path / "val/images/x.jpg", 9, WIDTH, HEIGHT)
    put_mask(tmp_path / "val/masks/x_mask.png", draw_mask(9))
    splits = open_annotated(str(tmp_path), "segment")
    assert (len(splits["train"]), len(splits["val"])) == (6, 1)


def test_lists_of_pascal_voc_decide_the_splits(tmp_path):
    put_masks(tmp_path, images="JPEGImages", masks="SegmentationClass")
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("000\n003\n")
    (lists / "val.txt").write_text("001\n")
    splits = open_annotated(str(tmp_path), "segment")
    assert splits["train"].dataset.keys == ["JPEGImages/000.png", "JPEGImages/003.png"]
    assert splits["val"].dataset.keys == ["JPEGImages/001.png"]


def test_the_void_value_does_not_shift_listed_classes(tmp_path):
    put_masks(tmp_path)
    (first, *_) = sorted((tmp_path / "masks").iterdir())
    values = np.array(Image.open(first))
    values[:2] = 255
    Image.fromarray(values).save(first)
    split = open_train(tmp_path, classes="background,cat,dog", ignore_index=0)
    assert split.class_names == ("cat", "dog")
    np.testing.assert_array_equal(split.read_mask(0) == 0, values == 1)


def test_a_repeated_class_name_is_one_class(tmp_path):
    put_masks(tmp_path)
    split = open_train(tmp_path, classes="void,car,void")
    assert split.class_names == ("void", "car")
    np.testing.assert_array_equal(split.read_mask(0) == 1, draw_mask(0) == 1)


@pytest.mark.parametrize(("ignored", "classes"), [(2, (0, 1, 3)), (0, (1, 2, 3)), (None, (0, 1, 2, 3))])
def test_any_value_can_be_ignored(tmp_path, ignored, classes):
    put_masks(tmp_path, values=(0, 1, 2, 3, 255))
    split = open_train(tmp_path, ignore_index=ignored)
    assert split.class_names == tuple(f"class {value}" for value in classes)
    table = np.full(256, 255)
    table[list(classes)] = range(len(classes))
    np.testing.assert_array_equal(split.read_mask(0), table[draw_mask(0, (0, 1, 2, 3, 255))])
    assert not split.problems


def test_masks_of_0_and_255_have_a_foreground(tmp_path):
    put_masks(tmp_path, values=(0, 255))
    split = open_train(tmp_path)
    assert split.class_names == ("background", "foreground")
    np.testing.assert_array_equal(split.read_mask(0), draw_mask(0, (0, 255)) // 255)


def test_names_of_classes(tmp_path):
    put_masks(tmp_path)
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    split = open_train(tmp_path)
    assert split.class_names == ("sky", "road")
    assert count_problems(split.problems) == {"mask value without a class name, ignored": 6}
    assert split.read_mask(0).max() == 255
    assert open_train(tmp_path, classes="a, b, c").class_names == ("a", "b", "c")
    assert open_train(tmp_path, classes="a,b,void", ignore_index=2).class_names == ("a", "b")
    fixed = open_annotated(str(tmp_path), "segment", val="none", class_names=("road", "sky"))["train"]
    np.testing.assert_array_equal(fixed.read_mask(0), np.array([1, 0, 255])[draw_mask(0)])


def test_ade20k(tmp_path):
    for split in ("training", "validation"):
        put_masks(tmp_path, images=f"images/{split}", masks=f"annotations/{split}")
    (tmp_path / "objectInfo150.txt").write_text("Idx\tRatio\tName\n1\t0.1\twall\n2\t0.1\tbuilding, edifice\n")
    splits = open_annotated(str(tmp_path), "segment")
    assert splits["val"].class_names == ("wall", "building")
    np.testing.assert_array_equal(splits["val"].read_mask(3), np.array([255, 0, 1])[draw_mask(3)])


def test_palettes_and_grey_colours_are_numbers(tmp_path):
    put_masks(tmp_path)
    palette = Image.fromarray(draw_mask(0)).convert("P")
    palette.putdata(draw_mask(0).ravel().tolist())
    palette.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    palette.save(tmp_path / "masks/000.png")
    put_mask(tmp_path / "masks/001.png", np.repeat(draw_mask(1)[..., None], 3, axis=2))
    split = open_train(tmp_path)
    for i in range(2):
        np.testing.assert_array_equal(split.read_mask(i), draw_mask(i))


def test_broken_masks_are_named_and_left_out(tmp_path):
    put_masks(tmp_path)
    put_mask(tmp_path / "masks/000.png", draw_mask(0)[:-1])
    put_mask(tmp_path / "masks/001.png", np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8))
    (tmp_path / "masks/002.png").write_bytes(b"")
    (tmp_path / "masks/003.png").unlink()
    (tmp_path / "images/004.png").unlink()
    split = open_train(tmp_path)
    kinds = {"mask of another size": 1, "unreadable": 2, "image without a mask": 1, "missing image": 1}
    assert count_problems(split.problems) == kinds
    assert split.dataset.keys == ["images/005.png"]


def test_masks_are_no_boxes(tmp_path):
    put_masks(tmp_path)
    with pytest.raises(UserError, match="vitling segment"):
        open_annotated(str(tmp_path), "detect")


def test_other_classes_are_named_or_refused():
    assert compare_classes("data", ("cat", "dog"), ("dog", "cat", "cow")) == ()
    (note,) = compare_classes("data", ("cat", "bird"), ("dog", "cat"))
    assert note == "Classes of data that are left out: bird; expected: dog, cat."
    with pytest.raises(UserError, match="data has only other classes: bird; expected: dog, cat"):
        compare_classes("data", ("bird",), ("dog", "cat"))
