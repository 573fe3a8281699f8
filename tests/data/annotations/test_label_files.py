"""Pascal VOC's XML, YOLO's text files and Label Studio's export."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.data.annotations.made import HEIGHT, WIDTH, pack
from tests.data.pictures import put
from vitling.data.annotations.brush import unpack_alpha
from vitling.data.annotations.open import open_annotated
from vitling.data.annotations.rle import decode_mask
from vitling.data.annotations.split import count_problems
from vitling.errors import UserError


def open_train(spec, task="detect"):
    return open_annotated(str(spec), task, val="none")["train"]


def in_pixels(split) -> list[list[float]]:
    return (split.instances.boxes * [WIDTH, HEIGHT, WIDTH, HEIGHT]).round(3).tolist()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_voc(root, name: str, objects: str, xml="Annotations", images="JPEGImages", width=WIDTH):
    put(root / images / f"{name}.jpg", len(name), WIDTH, HEIGHT)
    size = f"<size><width>{width}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    write(root / xml / f"{name}.xml", f"<annotation><filename>{name}.jpg</filename>{size}{objects}</annotation>")


def voc_object(label: str, *box: object, difficult: int = 0) -> str:
    sides = "".join(f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box))
    return f"<object><name>{label}</name><difficult>{difficult}</difficult><bndbox>{sides}</bndbox></object>"


def test_voc_devkit(tmp_path):
    root = tmp_path / "VOC2012"
    put_voc(root, "a", voc_object("cat", 1, 1, 10, 20) + voc_object("dog", 5, 6, WIDTH, HEIGHT, difficult=1))
    put_voc(root, "b", "")
    put_voc(root, "c", voc_object("dog", 2, 2, 4, 4))
    put_voc(root, "unlisted", voc_object("bird", 2, 2, 4, 4))
    write(root / "ImageSets/Main/train.txt", "a\nb\n")
    write(root / "ImageSets/Main/val.txt", "c\n")
    write(root / "ImageSets/Main/cat_train.txt", "a 1\nb -1\n")
    for spec in (tmp_path, pack(root)):
        splits = open_annotated(str(spec), "detect")
        train = splits["train"]
        assert (len(train), len(splits["val"])) == (2, 1)
        assert train.class_names == ("cat", "dog")
        assert in_pixels(train) == [[0, 0, 10, 20], [4, 5, WIDTH, HEIGHT]]  # counted from 1
        assert train.instances.crowd.tolist() == [False, True]
        assert not train.problems


def test_voc_beside_the_images(tmp_path):
    put_voc(tmp_path, "a", voc_object("cat", 1, 1, 10, 20), xml="train", images="train")
    put_voc(tmp_path, "b", voc_object("cat", 1, 1, 10, 20), xml="valid", images="valid")
    splits = open_annotated(str(tmp_path), "detect")
    assert in_pixels(splits["train"]) == [[1, 1, 10, 20]]  # counted from 0
    assert splits["val"].dataset.keys == ["valid/b.jpg"]


def test_broken_voc_is_named_and_left_out(tmp_path):
    good = voc_object("cat", 1, 1, 10, 20)
    put_voc(tmp_path, "a", good + voc_object("cat", 9, 1, 3, 20) + voc_object("cat", "x", 1, 3, 20) + "<object/>")
    put_voc(tmp_path, "b", good, width=99)
    write(tmp_path / "Annotations/c.xml", "<annotation><object>")
    write(tmp_path / "Annotations/d.xml", "<annotation><filename>d.jpg</filename></annotation>")
    bomb = '<!DOCTYPE a [<!ENTITY b "xxxxxxxxxx"><!ENTITY c "&b;&b;&b;">]><annotation>&c;</annotation>'
    write(tmp_path / "Annotations/e.xml", bomb)
    split = open_train(tmp_path)
    assert count_problems(split.problems) == {
        "unreadable annotation": 2,
        "box that is not a number": 2,
        "missing image": 1,
        "image of another size": 1,
        "inverted box": 1,
    }
    assert len(split.instances) == 1


def put_yolo(root, name: str, text: str | None, split="train", images="images/{}", labels="labels/{}"):
    put(root / images.format(split) / f"{name}.jpg", len(name), WIDTH, HEIGHT)
    if text is not None:
        write(root / labels.format(split) / f"{name}.txt", text)


@pytest.mark.parametrize("names", ["names: [cat, dog]", "names:\n  0: cat\n  1: dog"])
@pytest.mark.parametrize(("images", "labels"), [("images/{}", "labels/{}"), ("{}/images", "{}/labels")])
def test_yolo(tmp_path, names, images, labels):
    folders = {"images": images, "labels": labels}
    put_yolo(tmp_path, "a", "1 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.5 0.5\n", **folders)
    put_yolo(tmp_path, "b", None, **folders)
    put_yolo(tmp_path, "c", "0 0.5 0.5 1 1", split="val", **folders)
    write(tmp_path / "data.yaml", f"train: {images.format('train')}\n{names}\n")
    splits = open_annotated(str(tmp_path), "detect")
    train = splits["train"]
    assert train.class_names == ("cat", "dog")
    assert train.instances.offsets.tolist() == [0, 2, 2]  # an image without a text file shows nothing
    assert train.instances.classes.tolist() == [1, 0]
    assert in_pixels(train) == [[18, 8, 30, 24], [0, 0, 24, 16]]
    assert len(splits["val"]) == 1


def test_yolo_beside_the_images(tmp_path):
    put_yolo(tmp_path, "a", "0 0.5 0.5 0.5 0.5", images=".", labels=".")
    put_yolo(tmp_path, "bb", "3 0.5 0.5 0.5 0.5", images=".", labels=".")
    assert open_train(tmp_path).class_names == ("class 0", "class 3")
    write(tmp_path / "classes.txt", "cat\ndog\n")
    split = open_train(tmp_path)
    assert split.class_names == ("cat", "dog")
    assert count_problems(split.problems) == {"unknown category": 1}


def test_yolo_polygons_are_masks(tmp_path):
    put_yolo(tmp_path, "a", "0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75")
    split = open_train(tmp_path)
    assert in_pixels(split) == [[12, 8, 36, 24]]
    mask = np.zeros((HEIGHT, WIDTH))
    mask[8:24, 12:36] = 1
    np.testing.assert_array_equal(decode_mask(split.instances.segments[0]), mask)
    assert open_train(tmp_path, "segment").read_mask(0).tolist() == mask.tolist()


def test_broken_yolo_is_named_and_left_out(tmp_path):
    put_yolo(tmp_path, "a", "0 0.5 0.5 0.5 0.5\n0 0.5 0.5 0 0.5\nx y\n0 1 2\n0 nan 0.5 0.5 0.5\n-1 0.5 0.5 0.5 0.5\n")
    write(tmp_path / "labels/train/gone.txt", "0 0.5 0.5 0.5 0.5")
    split = open_train(tmp_path)
    assert count_problems(split.problems) == {
        "unreadable annotation": 3,
        "missing image": 1,
        "empty box": 1,
        "box that is not a number": 1,
    }
    write(tmp_path / "data.yaml", "names: [cat\n: {")
    with pytest.raises(UserError, match="not valid YAML"):
        open_train(tmp_path)


def region(kind: str, label: str | None = "cat", id: str = "r", **value) -> dict:
    labels = {} if label is None else {kind: [label]}
    size = {"original_width": WIDTH, "original_height": HEIGHT}
    return {"id": id, "type": kind, "value": {**value, **labels}, **size}


def put_export(root, *results, url="/data/upload/1/0123abcd-a.png", name="a.png"):
    put(root / "images" / name, 1, WIDTH, HEIGHT)
    tasks = [{"id": 1, "data": {"image": url}, "annotations": [{"result": list(results), "was_cancelled": False}]}]
    write(root / "export.json", json.dumps(tasks))


URLS = [
    "/data/upload/1/0123abcd-a.png",
    "/data/local-files/?d=photos/images/a.png",
    "s3://bucket/x/a.png?versionId=3",
    "https://example.org/images/a.png",
]


@pytest.mark.parametrize("url", URLS)
def test_label_studio(tmp_path, url):
    rectangle = region("rectanglelabels", "dog", x=25, y=25, width=50, height=50)
    polygon = region("polygonlabels", points=[[25, 25], [75, 25], [75, 75], [25, 75]])
    put_export(tmp_path, rectangle, url=url)
    split = open_train(tmp_path / "export.json")
    assert split.class_names == ("dog",)
    assert in_pixels(split) == [[12, 8, 36, 24]]
    assert split.instances.segments is None
    put_export(tmp_path, polygon, url=url)
    split = open_train(tmp_path)
    assert decode_mask(split.instances.segments[0])[8:24, 12:36].all()
    assert split.instances.areas.tolist() == [16 * 24]


def test_label_studio_with_labels_apart_from_regions(tmp_path):
    shape = region("rectangle", None, id="q", x=0, y=0, width=50, height=50)
    put_export(tmp_path, shape, {"id": "q", "type": "labels", "value": {"labels": ["cow"]}})
    assert open_train(tmp_path).class_names == ("cow",)


def test_rotated_rectangles_become_the_box_around_them(tmp_path):
    put_export(tmp_path, region("rectanglelabels", x=50, y=25, width=25, height=25, rotation=90))
    assert in_pixels(open_train(tmp_path)) == [[24 - 8, 8, 24, 8 + 12]]
    put_export(tmp_path, region("rectanglelabels", x=50, y=25, width=25, height=0.001, rotation=45))
    (found,) = in_pixels(open_train(tmp_path))
    assert found == pytest.approx([24, 8, 24 + 12 / math.sqrt(2), 8 + 12 / math.sqrt(2)], abs=0.01)


def pack_brush(values: np.ndarray, lengths=(3, 5, 8, 13)) -> list[int]:
    """Literal writer of the bit stream: a run wherever a value repeats, a stretch of one value elsewhere."""
    bits = f"{values.size:032b}{7:05b}" + "".join(f"{length - 1:04b}" for length in lengths)
    values = values.tolist()
    start = 0
    while start < len(values):
        stop = start + 1
        while stop < len(values) and values[stop] == values[start] and stop - start < 2 ** lengths[-1]:
            stop += 1
        kind = next(k for k, length in enumerate(lengths) if stop - start <= 2**length)
        bits += f"{int(stop - start > 1)}{kind:02b}{stop - start - 1:0{lengths[kind]}b}{values[start]:08b}"
        start = stop
    bits += "0" * (-len(bits) % 8)
    return [int(bits[k : k + 8], 2) for k in range(0, len(bits), 8)]


def test_label_studio_brush(tmp_path):
    canvas = Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(canvas).ellipse((5, 6, 30, 20), fill=255)
    alpha = np.asarray(canvas)
    pixels = np.repeat(alpha[..., None], 4, axis=2).ravel()
    packed = pack_brush(pixels)
    np.testing.assert_array_equal(unpack_alpha(bytes(packed), pixels.size), alpha.ravel())
    put_export(tmp_path, region("brushlabels", format="rle", rle=packed))
    split = open_train(tmp_path)
    np.testing.assert_array_equal(decode_mask(split.instances.segments[0]), alpha > 0)
    assert in_pixels(split) == [[5, 6, 31, 21]]


def test_stretches_of_single_values():
    bits = f"{8:032b}{7:05b}" + f"{2:04b}" * 4
    for values in ((1, 2), (3, 70, 5, 6, 7), (255,)):
        bits += "000" + f"{len(values) - 1:03b}" + "".join(f"{value:08b}" for value in values)
    packed = bytes(int(bits[k : k + 8].ljust(8, "0"), 2) for k in range(0, len(bits), 8))
    assert unpack_alpha(packed, 8).tolist() == [70, 255]


def test_brush_strokes_of_another_size_are_not_unpacked(tmp_path):
    packed = (4 * 10**8).to_bytes(4, "big") + bytes(4)
    huge = region("brushlabels", rle=list(packed)) | {"original_width": 10_000, "original_height": 10_000}
    put_export(tmp_path, huge, region("rectanglelabels", x=25, y=25, width=50, height=50))
    split = open_train(tmp_path)
    assert count_problems(split.problems) == {"brush stroke of another size": 1}
    assert len(split.instances) == 1


def test_broken_label_studio_is_named_and_left_out(tmp_path):
    good = region("rectanglelabels", x=25, y=25, width=50, height=50)
    put_export(
        tmp_path,
        good,
        region("rectanglelabels", x="left", y=25, width=50, height=50),
        region("rectanglelabels", x=25, y=25, width=-50, height=50),
        region("rectanglelabels", None, x=25, y=25, width=50, height=50),
        region("ellipselabels", x=1),
        region("polygonlabels", points=[[1, 1]]),
        region("brushlabels", rle=[1, 2, 3]),
        region("brushlabels", rle=[1, 999]),
        "nonsense",
    )
    split = open_train(tmp_path)
    kinds = {"unreadable annotation": 5, "inverted box": 1, "broken polygon": 1, "broken brush stroke": 1}
    assert count_problems(split.problems) == kinds
    assert len(split.instances) == 1


def test_data_without_annotations_is_refused(tmp_path):
    put(tmp_path / "a.png", 0)
    with pytest.raises(UserError, match="no annotations that vitling knows"):
        open_train(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        open_train(tmp_path / "gone")
