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

SIZE = 96
CORNER = Policy(filter="bilinear", rescale=Rescale((40.0, 70.0), longest=90.0))
PLANS = {
    "corner": Plan((Group(SIZE, policy=CORNER, return_boxes=True),)),
    "large-scale-jitter": make_plan("large-scale-jitter", SIZE),
    "segmentation": make_plan("segmentation", SIZE),
    "crop": Plan((Group(SIZE, policy=Policy(scale=(0.3, 1.0), steps=(Flip(0.5), Blur(0.1))), return_boxes=True),)),
}


def decode(views, store) -> torch.Tensor:
    """Return the pixels in 0..255, [B, H, W, 3]; the outside is grey."""
    mean, std = torch.tensor(store.mean), torch.tensor(store.std)
    return 255 * (views.pixels.permute(0, 2, 3, 1) * std + mean)


def find_colour(pixels: torch.Tensor, k: int) -> torch.Tensor:
    return (pixels - torch.tensor(COLOURS[k], dtype=torch.float32)).abs().amax(dim=-1) < 45


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_boxes_follow_the_view(name, epoch):
    scenes = Scenes(8)
    scenes.instances = keep_first(scenes.instances)  # the last drawn lies on top, the first of each image is removed
    store = scenes.make_store(192)
    plan = PLANS[name]
    if name == "segmentation":  # colours must not change
        group = plan.groups[0]
        plan = Plan((replace(group, policy=replace(group.policy, steps=(Flip(),))),))
    views, ids = draw_view(plan, store, epoch)
    targets = InstanceTargets(scenes.instances, "cpu").view(ids, views.boxes, SIZE)
    checked = 0
    for pixels, target in zip(decode(views, store), targets):
        for box, label, mask, mask_box in zip(*(target[f] for f in ("boxes", "labels", "masks", "mask_boxes"))):
            seen = find_colour(pixels, int(label) - 1)
            if (box[2:] - box[:2]).min() < 6 or not seen.any():
                continue
            y, x = seen.nonzero().T
            found = torch.tensor([x.min(), y.min(), x.max() + 1, y.max() + 1])
            assert (found - box).abs().max() < 2.5
            painted = paint(mask, mask_box)
            assert (painted & seen).sum() / (painted | seen).sum() > 0.75
            checked += 1
    assert checked >= (1 if name == "large-scale-jitter" else 4)


def keep_first(instances: Instances) -> Instances:
    """Keep the last instance of each image, which nothing covers."""
    rows = instances.offsets[1:] - 1
    segments = [instances.segments[i] for i in rows]
    fields = (getattr(instances, name)[rows] for name in ("boxes", "classes", "crowd", "areas"))
    return Instances(np.arange(len(rows) + 1), *fields, segments)


def paint(mask: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
    """Paste a mask into its box on the canvas, pixel by pixel."""
    side, canvas = len(mask), torch.zeros(SIZE, SIZE, dtype=torch.bool)
    left, top, right, bottom = box.tolist()
    for y in range(SIZE):
        for x in range(SIZE):
            column, row = (x + 0.5 - left) / (right - left) * side, (y + 0.5 - top) / (bottom - top) * side
            if 0 <= column < side and 0 <= row < side:
                canvas[y, x] = bool(mask[int(row), int(column)])
    return canvas


@pytest.mark.parametrize("name", PLANS)
def test_semantic_masks_follow_the_view(name):
    scenes = Scenes(8)
    store, plan = scenes.make_store(192), PLANS[name]
    if name == "segmentation":
        group = plan.groups[0]
        plan = Plan((replace(group, policy=replace(group.policy, steps=(Flip(),))),))
    masks = torch.from_numpy(squash_masks(lambda i: scenes.masks[i], len(scenes.masks), 192))
    views, ids = draw_view(plan, store)
    found = MaskTargets(masks).view(ids, views.boxes, SIZE)
    pixels = decode(views, store)
    outside = (views.pixels == 0).all(dim=1)
    assert torch.equal(found == 255, outside)
    if name == "large-scale-jitter":
        return  # blurred at a tenth of the size
    for k in range(3):
        seen, told = find_colour(pixels, k), found == k + 1
        assert (seen & told).sum() / (seen | told).sum() > 0.8


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
