"""Boxes and masks follow the views: shapes are drawn, rendered and found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.dense.shapes import COLOURS, Scenes, draw_view
from vitling.data.annotations.instances import Instances
from vitling.dense.targets import InstanceTargets, MaskTargets, place_boxes, squash_masks
from vitling.views import Blur, Flip, Group, Plan, Policy, Rescale
from vitling.views.policies import make_plan

CORNER = Policy(filter="bilinear", rescale=Rescale((40.0, 70.0), longest=90.0))
CROP = Policy(scale=(0.3, 1.0), steps=(Flip(0.5), Blur(0.1)))
PLANS = {
    "corner": Plan((Group(96, policy=CORNER, return_boxes=True),)),
    "detection": make_plan("detection", 160),
    "large-scale-jitter": make_plan("large-scale-jitter", 256),  # a shape has about 6 px at a tenth of the size
    "segmentation": make_plan("segmentation", 96),
    "crop": Plan((Group(96, policy=CROP, return_boxes=True),)),
}
TOLERANCE = 2.5  # px between a box and the outermost pixels of its colour
MIN_IOU = 0.75  # of a mask and the pixels of its colour, which are blurred at the edges
MIN_PX = 10  # shorter sides are too blurred for MIN_IOU


def decode(views, store) -> torch.Tensor:
    """Return the pixels in 0..255, [B, H, W, 3]; the outside is grey."""
    mean, std = torch.tensor(store.mean), torch.tensor(store.std)
    return 255 * (views.pixels.permute(0, 2, 3, 1) * std + mean)


def find_colour(pixels: torch.Tensor, k: int) -> torch.Tensor:
    return (pixels - torch.tensor(COLOURS[k], dtype=torch.float32)).abs().amax(dim=-1) < 45


def keep_colours(name: str) -> Plan:
    """Return a plan without steps that change colours."""
    group = PLANS[name].groups[0]
    if name != "segmentation":
        return PLANS[name]
    return Plan((replace(group, policy=replace(group.policy, steps=(Flip(),))),))


@pytest.mark.parametrize("name", PLANS)
def test_boxes_and_masks_follow_the_view(name):
    scenes = Scenes(8)
    store, plan, size = scenes.make_store(192), keep_colours(name), PLANS[name].groups[0].size
    instances, checked = 0, {True: 0, False: 0}  # by whether the view is mirrored
    for epoch in range(3):
        views, ids = draw_view(plan, store, epoch)
        targets = InstanceTargets(scenes.instances, "cpu").view(ids, views.boxes, size)
        for pixels, target, view in zip(decode(views, store), targets, views.boxes):
            instances += len(target["labels"])
            for k in range(len(target["labels"])):
                if (target["boxes"][k, 2:] - target["boxes"][k, :2]).min() >= MIN_PX:
                    check_instance(target, k, find_colour(pixels, int(target["labels"][k]) - 1))
                    checked[bool(view[2] < 0)] += 1
    assert sum(checked.values()) > 0.7 * instances > 20
    assert min(checked.values()) > 5


def check_instance(target: dict[str, torch.Tensor], k: int, seen: torch.Tensor) -> None:
    """Compare the mask and the box of an instance with its pixels `seen`, bool [size, size]."""
    box, mask_box = target["boxes"][k], target["mask_boxes"][k]
    painted = paint(target["masks"][k], mask_box, len(seen))
    assert torch.equal(box, mask_box.clamp(0, len(seen)))
    if not (painted | seen).any():
        return  # only the empty part of the box is on the canvas
    assert compute_iou(painted, seen) > MIN_IOU
    check_box(find_bounds(seen), box, mask_box, len(seen))


def check_box(bounds: torch.Tensor, box: torch.Tensor, mask_box: torch.Tensor, size: int) -> None:
    """Compare a box with the bounds of its object. Of an object that is cut off, they may lie further inside."""
    gaps = bounds - box
    assert (gaps[:2] > -TOLERANCE).all()
    assert (gaps[2:] < TOLERANCE).all()
    if mask_box.min() >= 0 and mask_box.max() <= size:
        assert gaps.abs().max() < TOLERANCE


def find_bounds(seen: torch.Tensor) -> torch.Tensor:
    y, x = seen.nonzero().T
    return torch.tensor([x.min(), y.min(), x.max() + 1, y.max() + 1])


def compute_iou(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a & b).sum() / (a | b).sum())


def paint(mask: torch.Tensor, box: torch.Tensor, size: int) -> torch.Tensor:
    """Paste a mask into its box on a canvas, pixel by pixel."""
    side, canvas = len(mask), torch.zeros(size, size, dtype=torch.bool)
    left, top, right, bottom = box.tolist()
    for y in range(max(0, int(top)), min(size, int(bottom) + 1)):
        for x in range(max(0, int(left)), min(size, int(right) + 1)):
            column, row = (x + 0.5 - left) / (right - left) * side, (y + 0.5 - top) / (bottom - top) * side
            if 0 <= column < side and 0 <= row < side:
                canvas[y, x] = bool(mask[int(row), int(column)])
    return canvas


@pytest.mark.parametrize("name", PLANS)
def test_semantic_masks_follow_the_view(name):
    scenes = Scenes(8)
    store, plan = scenes.make_store(192), keep_colours(name)
    masks = torch.from_numpy(squash_masks(lambda i: scenes.masks[i], len(scenes.masks), 192))
    views, ids = draw_view(plan, store)
    assert 1 < (views.boxes[:, 2] < 0).sum() < 7  # mirrored
    found = MaskTargets(masks).view(ids, views.boxes, plan.groups[0].size)
    pixels = decode(views, store)
    outside = (views.pixels == 0).all(dim=1)
    assert torch.equal(found == 255, outside)
    for k in range(3):
        assert compute_iou(find_colour(pixels, k), found == k + 1) > 0.8


def test_places_equal_the_literal_rule():
    boxes, views = torch.rand(5, 4), torch.tensor([0.2, 0.1, 1.5, 0.7]).repeat(5, 1)
    views[3:] = torch.tensor([0.9, 0.1, -0.6, 0.7])  # mirrored
    for ours, box, view in zip(place_boxes(boxes, views, 64), boxes.tolist(), views.tolist()):
        x = [(box[k] - view[0]) / view[2] * 64 for k in (0, 2)]
        y = [(box[k] - view[1]) / view[3] * 64 for k in (1, 3)]
        assert ours.tolist() == pytest.approx([min(x), min(y), max(x), max(y)], rel=1e-4, abs=1e-4)


def test_crowds_tiny_and_hidden_boxes_are_left_out():
    boxes = np.array([[0, 0, 0.5, 0.5], [0, 0, 0.005, 0.9], [0.9, 0.9, 1, 1], [0.1, 0.1, 0.4, 0.3]], np.float32)
    crowd = np.array([True, False, False, False])
    instances = Instances(np.array([0, 4, 4]), boxes, np.arange(4), crowd, np.ones(4, np.float32))
    view = torch.tensor([[0.0, 0.0, 0.8, 0.8]]).repeat(2, 1)
    shown, empty = InstanceTargets(instances, "cpu").view(torch.arange(2), view, 80)
    assert shown["labels"].tolist() == [4]
    assert "masks" not in shown
    assert empty["boxes"].shape == (0, 4)
    nothing = Instances(np.zeros(3, np.int64), boxes[:0], np.arange(0), crowd[:0], np.ones(0, np.float32), [])
    assert [len(t["masks"]) for t in InstanceTargets(nothing, "cpu").view(torch.arange(2), view, 80)] == [0, 0]
