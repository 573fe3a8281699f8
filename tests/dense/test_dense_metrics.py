"""AP as by pycocotools, called literally; mIoU as counted pixel by pixel."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vitling.data.annotations.instances import Instances
from vitling.data.annotations.rle import encode_mask
from vitling.data.annotations.split import AnnotatedSplit
from vitling.data.dataset import Dataset
from vitling.dense.detections import Detections
from vitling.dense.metrics import ConfusionMatrix, compute_ap
from vitling.errors import UserError

HEIGHT, WIDTH, CLASSES = 200, 256, 4  # a power of two and its fractions are exact in float32
NAMES = tuple(f"class {c}" for c in range(CLASSES))


def draw_boxes(rng: np.random.Generator, n: int) -> np.ndarray:
    corners = np.sort(rng.integers(0, 33, (n, 2, 2)) * [8, 6], axis=1)
    corners[:, 1] += 4
    return corners.reshape(-1, 4).astype(np.float64)


def fill(box: np.ndarray) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    left, top, right, bottom = box.astype(int)
    mask[top:bottom, left : right - (right - left) // 3] = 1
    return mask


def draw_split(seed: int, images: int = 6) -> AnnotatedSplit:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 8, images)
    boxes = draw_boxes(rng, counts.sum())
    masks = [fill(box) for box in boxes]
    instances = Instances(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        boxes=(boxes / [WIDTH, HEIGHT, WIDTH, HEIGHT]).astype(np.float32),
        classes=rng.integers(0, CLASSES - 1, len(boxes)),  # no instance of the last class
        crowd=rng.random(len(boxes)) < 0.1,
        areas=np.array([mask.sum() for mask in masks], np.float32),
        segments=[encode_mask(mask) for mask in masks],
    )
    dataset = Dataset("made/val", [f"{i}.png" for i in range(images)], lambda row: b"", np.arange(images))
    return AnnotatedSplit(dataset, NAMES, np.array([[HEIGHT, WIDTH]] * images), instances)


def detect(split: AnnotatedSplit, seed: int) -> list[Detections]:
    """Find most instances, shifted a little, and some that do not exist."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(len(split)):
        own = split.instances.take([i])
        boxes = np.concatenate([own.boxes * [WIDTH, HEIGHT, WIDTH, HEIGHT], draw_boxes(rng, 3)]).round()
        boxes[:, :2] = np.maximum(boxes[:, :2] - rng.integers(0, 4, (len(boxes), 2)), 0)
        wrong = rng.random(len(boxes)) < 0.2
        classes = np.concatenate([own.classes, rng.integers(0, CLASSES, 3)])
        classes = np.where(wrong, rng.integers(0, CLASSES, len(boxes)), classes)
        masks = [encode_mask(fill(box)) for box in boxes]
        found.append(Detections(boxes, rng.random(len(boxes)), classes, masks))
    return found


def evaluate_literally(split: AnnotatedSplit, detections: list[Detections], kind: str, folder) -> COCOeval:
    """Write both sides as files and read them as pycocotools' own demo does."""
    truth = {
        "images": [{"id": i, "height": HEIGHT, "width": WIDTH} for i in range(len(split))],
        "categories": [{"id": c, "name": name} for c, name in enumerate(NAMES)],
        "annotations": [],
    }
    results = []
    instances = split.instances
    for i, found in enumerate(detections):
        for k in range(instances.offsets[i], instances.offsets[i + 1]):
            x1, y1, x2, y2 = (instances.boxes[k] * [WIDTH, HEIGHT, WIDTH, HEIGHT]).tolist()
            truth["annotations"].append(
                {
                    "id": k + 1,
                    "image_id": i,
                    "category_id": int(instances.classes[k]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(instances.areas[k]),
                    "iscrowd": int(instances.crowd[k]),
                    "segmentation": instances.segments[k],
                }
            )
        for box, score, c, mask in zip(found.boxes.tolist(), found.scores, found.classes, found.masks):
            entry = {"image_id": i, "category_id": int(c), "score": float(score)}
            x1, y1, x2, y2 = box
            shape = {"bbox": [x1, y1, x2 - x1, y2 - y1]} if kind == "bbox" else {"segmentation": mask}
            results.append(entry | shape)
    for name, content in (("truth.json", truth), ("results.json", results)):
        (folder / name).write_text(json.dumps(content))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(folder / "truth.json"))
        evaluation = COCOeval(coco, coco.loadRes(str(folder / "results.json")), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize("seed", range(4))
def test_ap_equals_pycocotools(seed, tmp_path, capsys):
    split = draw_split(seed)
    detections = detect(split, seed)
    found = compute_ap(split, detections)
    assert capsys.readouterr().out == ""
    for kind, name in (("box", "bbox"), ("mask", "segm")):
        expected = evaluate_literally(split, detections, name, tmp_path)
        ap = found[kind]
        figures = [ap.ap, ap.ap50, ap.ap75, ap.ap_small, ap.ap_medium, ap.ap_large]
        assert 0 < ap.ap < 1
        np.testing.assert_allclose([-1 if v is None else v for v in figures], expected.stats[:6], rtol=1e-6)
        for c, value in enumerate(ap.per_class.values()):
            precision = expected.eval["precision"][:, :, c, 0, 2]
            assert value == (None if (precision == -1).all() else pytest.approx(precision[precision > -1].mean()))
    assert found["box"].per_class[NAMES[-1]] is None


def test_perfect_detections_have_an_ap_of_1():
    split = draw_split(0)
    perfect = []
    for i in range(len(split)):
        own = split.instances.take([i])
        boxes = own.boxes * [WIDTH, HEIGHT, WIDTH, HEIGHT]
        perfect.append(Detections(boxes, np.ones(len(own)), own.classes, own.segments))
    assert [ap.ap for ap in compute_ap(split, perfect).values()] == pytest.approx([1, 1])


def test_detections_without_masks_or_without_anything():
    split = draw_split(1)
    nothing = [Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64)) for _ in range(len(split))]
    assert compute_ap(split, nothing)["box"].ap == 0
    assert list(compute_ap(split, nothing)) == ["box"]
    some = [*detect(split, 1)[:3], *nothing[3:]]
    assert list(compute_ap(split, some)) == ["box", "mask"]
    broken = [Detections(np.full((2, 4), np.nan), np.ones(2), np.zeros(2, np.int64)) for _ in range(len(split))]
    assert compute_ap(split, broken)["box"].ap == 0
    with pytest.raises(ValueError, match="of 2 images, but 6"):
        compute_ap(split, nothing[:2])


def test_a_missing_pycocotools_is_named(monkeypatch):
    split = draw_split(1)
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(UserError, match=r"vitling\[dense\]"):
        compute_ap(split, detect(split, 1))


def test_miou_equals_a_literal_count():
    rng = np.random.default_rng(0)
    names = ("a", "b", "c", "absent")
    truth = rng.choice(np.array([0, 1, 2, 255], np.uint8), (3, 9, 11))
    predicted = np.where(rng.random(truth.shape) < 0.6, truth % 3, rng.integers(0, 3, truth.shape))
    matrix = ConfusionMatrix(4)
    for t, p in zip(truth, predicted):
        matrix.add(t, p)
    found = matrix.summarise(names)
    ious, accuracies, right, total = [], [], 0, 0
    for c in range(3):
        both = either = annotated = 0
        for t, p in zip(truth.ravel().tolist(), predicted.ravel().tolist()):
            if t == 255:
                continue
            both += t == c and p == c
            either += t == c or p == c
            annotated += t == c
        ious.append(both / either)
        accuracies.append(both / annotated)
        right, total = right + both, total + annotated
        assert found.per_class[names[c]].iou == pytest.approx(both / either)
        assert found.per_class[names[c]].accuracy == pytest.approx(both / annotated)
        assert found.per_class[names[c]].pixels == annotated
    assert found.miou == pytest.approx(np.mean(ious))
    assert found.mean_accuracy == pytest.approx(np.mean(accuracies))
    assert found.pixel_accuracy == pytest.approx(right / total)
    assert found.per_class["absent"].iou is None


def test_a_class_that_is_only_predicted_counts_as_missed():
    matrix = ConfusionMatrix(3)
    matrix.add(np.zeros((2, 2), np.uint8), np.array([[0, 0], [0, 1]]))
    found = matrix.summarise(("a", "b", "c"))
    assert found.miou == pytest.approx((3 / 4 + 0) / 2)
    assert found.mean_accuracy == 3 / 4
    assert ConfusionMatrix(2).summarise(("a", "b")).miou is None


def test_masks_of_different_shape_are_refused():
    with pytest.raises(ValueError, match="different shape"):
        ConfusionMatrix(2).add(np.zeros((2, 2), np.uint8), np.zeros((2, 3), np.uint8))
