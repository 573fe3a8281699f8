"""Mask R-CNN and its cascade: mask targets and pasted masks against literal ones, and toy runs that overfit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import project_masks_on_boxes

from tests.dense.shapes import Scenes, draw_view, small_backbone
from tests.training.helpers import config, run_in
from vitling.data.annotations.rle import decode_mask
from vitling.dense.detection import DetectionObjective
from vitling.dense.inference import WholeView, detect_images, paste_mask
from vitling.dense.mask_rcnn import make_proposal_network, sample_masks
from vitling.dense.metrics import compute_ap
from vitling.dense.targets import InstanceTargets
from vitling.objectives.objective import Batch
from vitling.objectives.progress import Progress
from vitling.training import CheckpointConfig, OptimConfig, fit
from vitling.views import Flip, Group, Plan, Policy, Rescale

DTYPES = (torch.float32, torch.bfloat16)


def test_mask_targets_equal_torchvisions():
    """Masks within boxes against masks of the size of the canvas."""
    torch.manual_seed(0)
    side, canvas = 56, 128
    line = ((torch.arange(side) + 0.5) / side * 2 - 1) ** 2
    disc = line[:, None] + line
    masks = (disc < 1).to(torch.uint8)[None].repeat(2, 1, 1)
    places = torch.tensor([[20.0, 30.0, 90.0, 80.0], [-20.0, 60.0, 60.0, 150.0]])
    y = x = torch.arange(canvas) + 0.5
    whole = []
    for left, top, right, bottom in places.tolist():
        u, v = (x - (left + right) / 2) / (right - left) * 2, (y - (top + bottom) / 2) / (bottom - top) * 2
        whole.append((v[:, None] ** 2 + u[None] ** 2 < 1).to(torch.uint8))
    boxes = torch.tensor([[22.0, 33.0, 80.0, 90.0], [10.0, 10.0, 60.0, 60.0], [0.0, 70.0, 70.0, 120.0]])
    matched = torch.tensor([0, 0, 1])
    theirs = project_masks_on_boxes(torch.stack(whole), boxes, matched, 28)
    ours = sample_masks([boxes], [matched], [{"masks": masks, "mask_boxes": places}], 28)
    assert (ours - theirs).abs().mean() < 0.03
    assert ((ours > 0.5) == (theirs > 0.5)).float().mean() > 0.97


def test_anchors_are_exact_for_maps_in_bf16():
    """In bf16, coordinates beyond 1024 px would be multiples of 8."""
    proposals = make_proposal_network(8)
    images = ImageList(torch.zeros(1, 3, 1280, 1280), [(1280, 1280)])
    shapes = [(1, 8, 1280 // stride, 1280 // stride) for stride in (4, 8, 16, 32, 64)]
    found = [proposals.anchor_generator(images, [torch.zeros(s, dtype=d) for s in shapes])[0] for d in DTYPES]
    assert torch.equal(*found)
    assert found[1].dtype == torch.float32


def test_pasted_masks_equal_the_literal_rule():
    rng = np.random.default_rng(0)
    for _ in range(20):
        probabilities, (left, top) = rng.random((28, 28)), rng.uniform(-3, 40, 2)
        box = np.array([left, top, left + rng.uniform(0.2, 30), top + rng.uniform(0.2, 30)])
        found = decode_mask(paste_mask(probabilities, box, (50, 44)))
        for y in range(50):
            for x in range(44):
                inside = box[0] <= x + 0.5 < box[2] and box[1] <= y + 0.5 < box[3]
                assert found[y, x] == (inside and look_up(probabilities, box, x, y) > 0.5)


def look_up(probabilities: np.ndarray, box: np.ndarray, x: int, y: int) -> float:
    """Interpolate between the four nearest cells."""
    column = min(max((x + 0.5 - box[0]) / (box[2] - box[0]) * 28 - 0.5, 0), 27)
    row = min(max((y + 0.5 - box[1]) / (box[3] - box[1]) * 28 - 0.5, 0), 27)
    i, j = int(row), int(column)
    i2, j2 = min(i + 1, 27), min(j + 1, 27)
    a, b = row - i, column - j
    top = (1 - b) * probabilities[i, j] + b * probabilities[i, j2]
    bottom = (1 - b) * probabilities[i2, j] + b * probabilities[i2, j2]
    return (1 - a) * top + a * bottom


@pytest.mark.parametrize("kind", ["mask-rcnn", "cascade"])
def test_images_without_objects_have_finite_losses(kind):
    scenes = Scenes(2)
    empty = scenes.instances.take([0, 1])
    empty.crowd[:] = True
    plan = make_toy_plan()
    model = DetectionObjective(small_backbone(), plan, InstanceTargets(empty, "cpu"), 3, kind, width=16)
    terms = compute_terms(model, scenes)
    assert all(value.isfinite() for value in terms.values())
    sum(terms.values()).backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_without_masks_there_is_no_mask_term():
    scenes = Scenes(2)
    boxes = InstanceTargets(replace(scenes.instances, segments=None), "cpu")
    model = DetectionObjective(small_backbone(), make_toy_plan(), boxes, 3, masks=False, width=16)
    assert set(compute_terms(model, scenes)) == {"objectness", "proposal", "class", "box"}
    assert "masks" not in model.eval().predict(torch.randn(1, 3, 96, 64))[0]


def make_toy_plan(size: int = 96) -> Plan:
    policy = Policy(filter="bilinear", rescale=Rescale((size, size), longest=size), steps=(Flip(),))
    return Plan((Group(size, policy=policy, return_boxes=True),))


def compute_terms(model: DetectionObjective, scenes: Scenes) -> dict[str, torch.Tensor]:
    views, ids = draw_view(model.plan, scenes.make_store())
    return model([views], Batch(ids, None), Progress(0, 1, 1))


def test_detections_do_not_depend_on_other_images():
    """A batch holds images of one size: padding for a larger one would change what a transformer sees."""
    torch.manual_seed(0)
    scenes = Scenes(4)
    assert len({image.shape for image in scenes.images}) > 1
    model = DetectionObjective(small_backbone(), make_toy_plan(), None, 3, width=16)
    store, view = scenes.make_store(96), WholeView(96, 96)
    together, alone = (dict(detect_images(model, store, view, batch)) for batch in (4, 1))
    for i, found in together.items():
        np.testing.assert_allclose(found.boxes, alone[i].boxes, atol=1e-2)
        np.testing.assert_allclose(found.scores, alone[i].scores, atol=1e-4)


@pytest.mark.parametrize("kind", ["mask-rcnn", "cascade"])
def test_toy_run_overfits(tmp_path, kind):
    """AP50 of the boxes and of the masks of six drawn images above 0.9 (in 50 epochs, batch 3)."""
    torch.manual_seed(0)
    scenes = Scenes(6)
    store, split = scenes.make_store(96), scenes.make_split()
    targets = InstanceTargets(scenes.instances, "cpu")
    model = DetectionObjective(small_backbone(), make_toy_plan(), targets, 3, kind, width=32)
    model.detector.heads.fg_bg_sampler.batch_size_per_image = 32
    settings = config(epochs=50, batch=3, optim=OptimConfig(lr=2e-3), checkpoint=CheckpointConfig())
    fit(model, store, settings, run=run_in(tmp_path / "run"))
    by_id = dict(detect_images(model, store, WholeView(96, 96)))
    found = [by_id[i] for i in range(len(split))]
    for (height, width), some in zip(split.sizes, found):
        assert (some.boxes <= np.array([width, height] * 2) + 1e-3).all()
    scores = {kind: ap.ap50 for kind, ap in compute_ap(split, found).items()}
    assert min(scores["box"], scores["mask"]) > 0.9
