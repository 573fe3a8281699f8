"""Copy-paste: pixels, masks and boxes against drawn scenes."""

from __future__ import annotations

import pytest
import torch

from tests.dense.shapes import Scenes, draw_view, small_backbone
from tests.dense.test_targets import MIN_IOU, MIN_PX, check_box, compute_iou, decode, find_bounds, find_colour, paint
from vitling.dense.copy_paste import copy_paste, spread_masks, uncover
from vitling.dense.detection import DetectionObjective
from vitling.dense.targets import InstanceTargets
from vitling.objectives.objective import Batch
from vitling.objectives.progress import Progress
from vitling.views import Draws
from vitling.views.policies import make_plan

SIZE = 96
PLAN = make_plan("large-scale-jitter", SIZE)


def draw(epoch: int = 0) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    scenes = Scenes(8)
    views, ids = draw_view(PLAN, scenes.make_store(), epoch)
    return views.pixels, InstanceTargets(scenes.instances, "cpu").view(ids, views.boxes, SIZE)


def test_masks_spread_as_painted():
    _, targets = draw()
    for target in targets:
        spread = spread_masks(target["masks"], target["mask_boxes"], SIZE)
        for ours, mask, box in zip(spread, target["masks"], target["mask_boxes"]):
            assert (ours != paint(mask, box, SIZE)).sum() <= 0.1 * ours.sum() + 8  # bilinear, not nearest


def test_pixels_come_from_one_of_two_images():
    pixels, targets = draw()
    draws = Draws.from_ids([1], torch.arange(8))
    pasted, changed = copy_paste(pixels, targets, draws, 1.0)
    assert sum(len(t["labels"]) for t in changed) > sum(len(t["labels"]) for t in targets)
    for i in range(8):
        other = pixels[(i + 1) % 8]
        is_own, is_other = (pasted[i] == pixels[i]).all(dim=0), (pasted[i] == other).all(dim=0)
        assert (is_own | is_other).all()
        picked = draws.uniform("copy-paste objects", 3)[i, : len(targets[(i + 1) % 8]["labels"])] < 0.5
        cover = torch.zeros(SIZE, SIZE, dtype=torch.bool)
        for mask, box in zip(*(targets[(i + 1) % 8][name][picked] for name in ("masks", "mask_boxes"))):
            cover |= spread_masks(mask[None], box[None], SIZE)[0]
        assert (is_own | cover).all()  # nothing changes outside the cover
        assert is_other[cover].all()


@pytest.mark.parametrize("policy", ["detection", "large-scale-jitter"])
def test_pasted_masks_and_boxes_fit_the_pixels(policy):
    scenes, size = Scenes(8), 256
    store, plan = scenes.make_store(192), make_plan(policy, size)
    instances = checked = pasted = 0
    for epoch in range(2):
        views, ids = draw_view(plan, store, epoch)
        before = InstanceTargets(scenes.instances, "cpu").view(ids, views.boxes, size)
        views.pixels, after = copy_paste(views.pixels, before, Draws.from_ids([epoch], ids), 1.0)
        instances += sum(len(target["labels"]) for target in after)
        pasted += sum(len(target["labels"]) for target in after) - sum(len(target["labels"]) for target in before)
        checked += sum(check_classes(pixels, target) for pixels, target in zip(decode(views, store), after))
    assert pasted > 10
    assert checked > 0.7 * instances


def check_classes(pixels: torch.Tensor, target: dict[str, torch.Tensor]) -> int:
    """Compare boxes with masks, and the masks of each class with its pixels; return the number of instances."""
    checked = 0
    for label in target["labels"].unique().tolist():
        rows = (target["labels"] == label).nonzero()[:, 0].tolist()
        masks = [paint(target["masks"][k], target["mask_boxes"][k], len(pixels)) for k in rows]
        if any(count_px(mask) < MIN_PX for mask in masks):
            continue
        assert compute_iou(torch.stack(masks).any(dim=0), find_colour(pixels, label - 1)) > MIN_IOU
        for k, mask in zip(rows, masks):
            check_box(find_bounds(mask), target["boxes"][k], target["mask_boxes"][k], len(pixels))
        checked += len(rows)
    return checked


def count_px(mask: torch.Tensor) -> float:
    """Return the shorter side of a mask's box."""
    return (find_bounds(mask)[2:] - find_bounds(mask)[:2]).min() if mask.any() else 0


def test_without_chance_nothing_changes():
    pixels, targets = draw()
    same, kept = copy_paste(pixels, targets, Draws.from_ids([1], torch.arange(8)), 0.0)
    assert torch.equal(same, pixels)
    for ours, theirs in zip(kept, targets):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_covered_objects_shrink_or_vanish():
    full = torch.ones(2, 56, 56, dtype=torch.uint8)
    boxes = torch.tensor([[10.0, 10.0, 50.0, 50.0], [60.0, 60.0, 80.0, 80.0]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": full, "mask_boxes": boxes}
    cover = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    cover[:, :30] = True  # half of the first
    cover[55:, 55:] = True  # all of the second
    left = uncover(target, cover)
    assert left["labels"].tolist() == [1]
    assert (left["boxes"][0] - torch.tensor([30.0, 10.0, 50.0, 50.0])).abs().max() < 1
    assert (left["masks"][0].float().mean() - 0.5).abs() < 0.02


def test_an_objective_pastes_by_the_steps_key():
    scenes = Scenes(3)
    store, targets = scenes.make_store(), InstanceTargets(scenes.instances, "cpu")
    model = DetectionObjective(small_backbone(), PLAN, targets, 3, width=8, copy_paste=1.0)
    assert model.compares_images
    views, ids = draw_view(PLAN, store)
    terms = model([views], Batch(ids, None, key=torch.tensor(5)), Progress(0, 1, 1))
    assert all(value.isfinite() for value in terms.values())


def test_an_object_that_leaves_the_canvas_and_is_covered_disappears():
    target = {
        "boxes": torch.tensor([[0.0, 8.0, 32.0, 16.0]]),
        "labels": torch.ones(1, dtype=torch.int64),
        "masks": torch.ones(1, 56, 56, dtype=torch.uint8),
        "mask_boxes": torch.tensor([[-32.0, 8.0, 64.0, 16.0]]),  # two thirds are outside
    }
    cover = torch.zeros(32, 32, dtype=torch.bool)
    assert uncover(target, cover)["boxes"].tolist() == target["boxes"].tolist()
    cover[8:16] = True
    assert not len(uncover(target, cover)["labels"])
    cover[:, :16] = False
    (box,) = uncover(target, cover)["boxes"].tolist()
    assert box[0] == 0
    assert abs(box[2] - 16) < 2
