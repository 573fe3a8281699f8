"""Pictures with boxes, masks and class maps, looked at pixel by pixel, and the score of an image."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vitling.data.annotations.rle import encode_mask
from vitling.dense.detections import Detections
from vitling.runs.dense_evaluation import overlap, score_image
from vitling.runs.drawing import draw_class_map, draw_detections, encode_class_map, make_palette, place_side_by_side

GREY = Image.new("RGB", (60, 40), (100, 100, 100))
NAMES = ("cat", "dog")


def found(*boxes: tuple, scores: tuple[float, ...] = (), classes: tuple[int, ...] = ()) -> Detections:
    n = len(boxes)
    return Detections(
        np.array(boxes, float).reshape(-1, 4), np.array(scores or (1.0,) * n), np.array(classes or (0,) * n)
    )


def test_colours_differ_between_classes():
    palette = make_palette(150)
    assert len(np.unique(palette[:150], axis=0)) > 140
    assert not palette[255].any()


def test_a_class_map_survives_its_png():
    classes = np.random.default_rng(0).integers(0, 200, (17, 23)).astype(np.uint8)
    file = io.BytesIO()
    encode_class_map(classes, 200).save(file, "PNG")
    with Image.open(file) as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), classes)


def test_ignored_pixels_keep_their_colour():
    classes = np.zeros((40, 60), np.uint8)
    classes[:, 30:] = 255
    drawn = np.asarray(draw_class_map(GREY, classes, NAMES))
    assert (drawn[:40, 30:] == 100).all()
    assert (drawn[0, 0] == np.round((100 + make_palette(2)[0].astype(float)) / 2)).all()
    assert len(drawn) > 40  # the legend


def test_boxes_and_masks_are_drawn_where_they_are():
    mask = np.zeros((40, 60), np.uint8)
    mask[20:30, 20:30] = 1
    detections = found((20, 20, 30, 30), (2, 25, 12, 35), scores=(0.9, 0.2))
    detections.masks = [encode_mask(mask)] * 2
    drawn = np.asarray(draw_detections(GREY, detections, NAMES))
    colour = make_palette(2)[0]
    assert (drawn[20, 20:30] == colour).all()  # the upper edge
    assert (drawn[25, 25] != 100).any()  # the mask
    assert (drawn[30:, 2:12] == 100).all()  # below the score that is drawn


def test_pictures_stand_side_by_side():
    sheet = place_side_by_side([GREY, GREY], ["annotated", "predicted"])
    assert sheet.width > 2 * GREY.width
    assert sheet.height > GREY.height


def test_overlap_of_boxes():
    assert overlap(np.array([0, 0, 2, 2.0]), np.array([1, 0, 3, 2.0])) == pytest.approx(1 / 3)
    assert overlap(np.array([0, 0, 1, 1.0]), np.array([2, 2, 3, 3.0])) == 0


@pytest.mark.parametrize(
    ("detected", "score"),
    [
        (found(), 0.0),
        (found((0, 0, 10, 10), (20, 20, 30, 30)), 1.0),
        (found((0, 0, 10, 10), (0, 0, 10, 10)), 0.5),  # the second finds nothing new
        (found((0, 0, 10, 10), (20, 20, 30, 30), classes=(0, 1)), 0.5),
        (found((0, 0, 10, 10), (20, 20, 30, 30), scores=(0.9, 0.3)), 2 / 3),
    ],
)
def test_the_score_of_an_image(detected, score):
    assert score_image(found((0, 0, 10, 10), (20, 20, 30, 30)), detected) == pytest.approx(score)


def test_an_image_without_objects_has_no_score():
    assert score_image(found(), found((0, 0, 10, 10))) is None
