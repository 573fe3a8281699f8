"""Instances: selection, and masks cropped to their boxes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitling.data.annotations.instances import Instances
from vitling.data.annotations.rle import decode_mask, encode_mask


def draw_instances(counts=(2, 0, 3, 1), height: int = 40, width: int = 60, seed: int = 0) -> Instances:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    corners = np.sort(rng.random((offsets[-1], 2, 2)), axis=1)
    boxes = corners.reshape(-1, 4).astype(np.float32)
    masks = [np.kron(rng.random((8, 12)) < 0.5, np.ones((5, 5))) for _ in boxes]
    assert masks[0].shape == (height, width)
    classes = rng.integers(0, 3, len(boxes))
    areas = rng.random(len(boxes), dtype=np.float32)
    return Instances(offsets, boxes, classes, rng.random(len(boxes)) < 0.2, areas, [encode_mask(m) for m in masks])


def test_take_selects_the_instances_of_images():
    instances = draw_instances()
    taken = instances.take([2, 1, 0])
    rows = [2, 3, 4, 0, 1]
    assert taken.offsets.tolist() == [0, 3, 3, 5]
    assert taken.images.tolist() == [0, 0, 0, 2, 2]
    for name in ("boxes", "classes", "crowd", "areas"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(instances, name)[rows])
    assert taken.segments == [instances.segments[i] for i in rows]
    assert len(instances.take([])) == 0


def test_instances_without_masks_drop_the_masks_of_others_unless_they_are_none():
    instances = draw_instances()
    empty = replace(instances.take([1, 1]), segments=None)
    assert instances.append(empty).segments == empty.append(instances).segments == instances.segments
    assert empty.append(instances).offsets.tolist() == [0, 0, 0, *instances.offsets[1:]]
    assert instances.append(replace(instances, segments=None)).segments is None


def test_masks_are_sampled_inside_their_boxes():
    """Literal version: decode the mask and look up the pixel below the centre of each cell."""
    instances = draw_instances()
    crops = instances.crop_masks(7)
    for crop, box, rle in zip(crops, instances.boxes.astype(np.float64), instances.segments):
        mask = decode_mask(rle)
        for row in range(7):
            for column in range(7):
                x = (box[0] + (column + 0.5) / 7 * (box[2] - box[0])) * 60
                y = (box[1] + (row + 0.5) / 7 * (box[3] - box[1])) * 40
                assert crop[row, column] == mask[int(y), int(x)]
