"""Annotation files from elsewhere: sound instances, masks of the image's size, or a UserError."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.data.annotations.made import HEIGHT, WIDTH, make_coco, put_coco, put_masks
from tests.data.annotations.test_label_files import pack_brush, put_export, put_voc, put_yolo, region, voc_object, write
from tests.hostile import QUICK, accepts_or_refuses, damaged_bytes, damaged_records, json_texts, names, values
from vitling.data.annotations.open import open_annotated

NUMBERS = st.floats() | st.integers() | st.sampled_from([1e308, -1e308, 2**62, 1e-320, 0.5, 10])


def check(root, task="detect"):
    """Open the data; whatever comes out must be usable for training."""
    splits = accepts_or_refuses(lambda: open_annotated(str(root), task, val="none"))
    for split in (splits or {}).values():
        if split is None:
            continue
        json.dumps([[problem.file, problem.what] for problem in split.problems]).encode()
        "".join(split.class_names).encode()
        assert split.counts.shape == (len(split), len(split.class_names))
        if split.read_mask is not None:
            for i in range(len(split)):
                mask = split.read_mask(i)
                assert mask.shape == tuple(split.sizes[i])
                assert set(np.unique(mask)) <= {*range(len(split.class_names)), 255}
            continue
        found = split.instances
        assert found.offsets[-1] == len(found) == len(found.boxes) == len(found.areas)
        assert np.isfinite(found.boxes).all()
        assert ((found.boxes >= 0) & (found.boxes <= 1)).all()
        assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
        assert (np.isfinite(found.areas) & (found.areas > 0)).all()
        assert ((found.classes >= 0) & (found.classes < len(split.class_names))).all()
        if found.segments is not None:
            assert found.crop_masks(4).shape == (len(found), 4, 4)
    return splits


@pytest.fixture(scope="module")
def coco_root(tmp_path_factory):
    return put_coco(tmp_path_factory.mktemp("coco"), make_coco(2))


@QUICK
@given(content=damaged_records(make_coco(2)), task=st.sampled_from(["detect", "segment"]))
def test_coco_with_any_value_anywhere(content, task, coco_root):
    (coco_root / "annotations/instances_train2017.json").write_text(json.dumps(content))
    check(coco_root, task)


@QUICK
@given(
    raw=json_texts.map(lambda text: text.encode("utf-8", "replace")) | damaged_bytes(json.dumps(make_coco(2)).encode())
)
def test_coco_files_of_any_content(raw, coco_root):
    (coco_root / "annotations/instances_train2017.json").write_bytes(raw)
    check(coco_root)


SEGMENTS = st.one_of(
    st.lists(st.lists(NUMBERS, max_size=12), max_size=3),
    st.builds(lambda counts: {"size": [HEIGHT, WIDTH], "counts": counts}, st.text(max_size=20) | st.lists(NUMBERS)),
    st.builds(lambda size: {"size": size, "counts": "0"}, st.lists(st.integers(-3, 2**40), max_size=3)),
    values,
)


@QUICK
@given(
    bbox=st.lists(NUMBERS, max_size=5) | values,
    segmentation=SEGMENTS,
    area=NUMBERS | values,
    crowd=st.sampled_from([0, 1, True, 3]) | values,
)
def test_coco_with_any_box_and_mask(bbox, segmentation, area, crowd, coco_root):
    content = make_coco(2)
    content["annotations"][0] |= {"bbox": bbox, "segmentation": segmentation, "area": area, "iscrowd": crowd}
    (coco_root / "annotations/instances_train2017.json").write_text(json.dumps(content))
    if found := check(coco_root):  # None: a number of more than 64 bits, for which the file is refused
        assert len(found["train"].instances) >= 3


@QUICK
@given(
    label=names | st.just("cat"),
    box=st.lists(NUMBERS | names, min_size=4, max_size=4),
    size=NUMBERS | st.just(WIDTH),
    raw=st.none() | st.binary(max_size=40) | damaged_bytes(b"<annotation><size></size></annotation>"),
)
def test_voc_with_any_content(label, box, size, raw, tmp_path):
    text = "".join(character for character in label if character.isalnum())
    put_voc(tmp_path, "a", voc_object("cat", 1, 2, 3, 4))
    put_voc(tmp_path, "b", voc_object(text.encode("utf-8", "replace").decode(), *(str(n).strip("<&") for n in box)))
    if raw is not None:
        (tmp_path / "Annotations/b.xml").write_bytes(raw)
    check(tmp_path)


@QUICK
@given(
    raw=st.binary(max_size=60)
    | st.lists(st.lists(NUMBERS, max_size=10), max_size=4).map(
        lambda lines: "\n".join(" ".join(map(str, line)) for line in lines).encode()
    )
    | damaged_bytes(b"0 0.25 0.25 0.75 0.25 0.75 0.75\n1 0.5 0.5 0.1 0.1\n"),
    data=st.none() | st.binary(max_size=40) | damaged_bytes(b"names: {0: cat, 1: dog}\n"),
)
@example(raw=b"", data=b"a: &a [x]\nb: &b [*a, *a]\nnames: [*b, *b]")
@example(raw=b"", data=b"names: [0x" + b"f" * 5000 + b"]")
@example(raw=b"", data=b"names: !!timestamp x")
@example(raw=b"", data=b'names: !!float ""')
def test_yolo_with_any_content(raw, data, tmp_path):
    put_yolo(tmp_path, "a", "0 0.5 0.5 0.5 0.5")
    put_yolo(tmp_path, "b", "")
    (tmp_path / "labels/train/b.txt").write_bytes(raw)
    (tmp_path / "data.yaml").unlink(missing_ok=True)
    if data is not None:
        (tmp_path / "data.yaml").write_bytes(data)
    check(tmp_path)


BRUSH = pack_brush(np.repeat(np.arange(HEIGHT * WIDTH) % 7 > 3, 4).astype(np.uint8) * 255)
REGIONS = [
    region("rectanglelabels", x=1, y=2, width=30, height=40, rotation=3),
    region("polygonlabels", points=[[1, 1], [50, 1], [50, 50]]),
    region("brushlabels", rle=BRUSH[:60]),
]
EXPORT = [{"data": {"image": "a.png"}, "annotations": [{"result": REGIONS}]}]


@QUICK
@given(content=damaged_records(EXPORT))
def test_label_studio_with_any_value_anywhere(content, tmp_path):
    put_export(tmp_path)
    write(tmp_path / "export.json", json.dumps(content))
    check(tmp_path)


@QUICK
@given(raw=damaged_bytes(bytes(BRUSH)))
def test_damaged_brush_strokes(raw, tmp_path):
    put_export(
        tmp_path, region("brushlabels", rle=list(raw)), region("polygonlabels", points=[[1, 1], [50, 1], [50, 50]])
    )
    found = check(tmp_path)
    assert found is not None
    assert len(found["train"].instances) >= 1


@QUICK
@given(
    raw=st.binary(max_size=30),
    which=st.sampled_from(["masks/000.png", "images/000.png", "classes.txt"]),
    data=st.data(),
)
def test_damaged_masks(raw, which, data, tmp_path):
    put_masks(tmp_path, n=2)
    (tmp_path / "classes.txt").unlink(missing_ok=True)
    path = tmp_path / which
    path.write_bytes(data.draw(damaged_bytes(path.read_bytes())) if path.exists() and data.draw(st.booleans()) else raw)
    check(tmp_path, "segment")
