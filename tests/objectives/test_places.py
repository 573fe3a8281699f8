"""Regions that show the same place, compared with a literal version and with the content of the views."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.methods.helpers import batch_of, make
from tests.tiny import tiny_backbone
from vitling.backbones import create
from vitling.methods.dino.settings import dino_plan
from vitling.methods.esvit.loss import EsViT
from vitling.methods.esvit.settings import EsViTConfig
from vitling.objectives.places import RegionLines, locate_regions, match_by_place
from vitling.views.batch import BatchKey, ViewBatch
from vitling.views.config import ViewChanges
from vitling.views.plan import Flip, Group, Jitter, Mix, Plan, Policy, Rotate
from vitling.views.policies import make_plan
from vitling.views.renderer import FunctionCache, Normaliser, Renderer, Views

IMAGES = 3


def draw_boxes(views: int, seed: int, images: int = IMAGES) -> torch.Tensor:
    """Draw boxes in images, every other one mirrored."""
    random = torch.Generator().manual_seed(seed)
    sides = 0.2 + 0.7 * torch.rand(views * images, 2, generator=random)
    left, top = (torch.rand(views * images, 2, generator=random) * (1 - sides)).unbind(1)
    width, height = sides.unbind(1)
    mirrored = torch.arange(len(left)) % 2 == 1
    return torch.stack(
        [torch.where(mirrored, left + width, left), top, torch.where(mirrored, -width, width), height], 1
    )


def make_even_regions(places: torch.Tensor, high: int, wide: int) -> RegionLines:
    """Make regions that divide a view evenly."""
    return RegionLines(places, *((torch.arange(side) + 0.5) / side for side in (high, wide)))


def literal(seen: list[RegionLines]) -> torch.Tensor:
    def tent(at: float, keys: list[float]) -> list[float]:
        """Interpolate linearly between neighbouring keys."""
        at = min(max(at, keys[0]), keys[-1])
        shares = [float(at == key) for key in keys]
        for j in range(len(keys) - 1):
            if keys[j] < at < keys[j + 1]:
                shares[j + 1] = (at - keys[j]) / (keys[j + 1] - keys[j])
                shares[j] = 1 - shares[j + 1]
        return shares

    theirs, down, across = (part.tolist() for part in seen[0])
    plans = []
    for b in range(IMAGES):
        lines, view = [], -1
        for places, rows, columns in seen:
            for v in range(len(places) // IMAGES):
                view += 1
                left, top, width, height = places[v * IMAGES + b].tolist()
                for row, column in itertools.product(rows.tolist(), columns.tolist()):
                    y, x, line = top + height * row, left + width * column, []
                    for g in range(len(theirs) // IMAGES):
                        their_left, their_top, their_width, their_height = theirs[g * IMAGES + b]
                        fy, fx = (y - their_top) / their_height, (x - their_left) / their_width
                        none = view == g or not (0 <= fy <= 1 and 0 <= fx <= 1)
                        shares = itertools.product(tent(fy, down), tent(fx, across))
                        line += [0.0 if none else p * q for p, q in shares]
                    lines.append(torch.tensor(line) / (len(rows) * len(columns)))
        plan = torch.stack(lines)
        plans.append(plan / plan.sum() if plan.sum() else plan)
    return torch.stack(plans)


def test_matching_equals_a_literal_version_for_uneven_grids():
    wide = RegionLines(draw_boxes(2, 0), torch.tensor([0.05, 0.3, 0.5, 0.9]), torch.tensor([0.1, 0.4, 0.6, 0.7, 0.95]))
    seen = [wide, make_even_regions(draw_boxes(3, 1), 2, 3), make_even_regions(draw_boxes(1, 2), 1, 1)]
    found, expected = match_by_place(seen, IMAGES), literal(seen)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(found.sum((1, 2)), torch.ones(IMAGES))


def test_mirrored_views_match_region_by_region():
    whole, mirrored = torch.tensor([[0.0, 0, 1, 1]] * IMAGES), torch.tensor([[1.0, 0, -1, 1]] * IMAGES)
    plan = match_by_place([make_even_regions(torch.cat([whole, mirrored]), 2, 3)], IMAGES)[0]
    assert torch.allclose(plan[:6, 6:], torch.eye(6).view(6, 2, 3).flip(-1).reshape(6, 6) / 12, atol=1e-6)
    assert not plan[:6, :6].any()  # not with itself


def test_views_without_overlap_have_no_matches_and_no_nan():
    apart = torch.tensor([[0.0, 0, 0.3, 0.3]] * IMAGES + [[0.6, 0.6, 0.3, 0.3]] * IMAGES)
    plan = match_by_place([make_even_regions(apart, 3, 3)], IMAGES)
    assert not plan.any()
    assert plan.isfinite().all()


@pytest.mark.parametrize("stride", [1, 2])
def test_region_centres_are_the_networks(stride):
    """56 x 40 px: patches of 4, halved three times, with a last one that covers less than the others."""
    backbone, places = create("swin_tiny_patch4_window7_224", 64), draw_boxes(2, 0)
    views = [Views(torch.zeros(IMAGES, 3, 56, 40), 1, boxes=some) for some in places.chunk(2)]
    (found,) = locate_regions(backbone, views, 2, stride)
    assert torch.equal(found.boxes, places)
    assert torch.allclose(found.rows, torch.tensor([16, 44])[::stride] / 56)
    assert torch.allclose(found.columns, torch.tensor([16, 36])[::stride] / 40)
    with pytest.raises(ValueError, match=r"views \[1\] have no boxes"):
        locate_regions(backbone, [views[0], Views(views[1].pixels, 1)], 2)


def render(
    policy: Policy, functions: FunctionCache | None = None, mix: Mix | None = None, local: np.ndarray | None = None
):
    """Render views, with their boxes, of images whose red is x and green is y."""
    side, count = 64, 4
    x = ((torch.arange(side) + 0.5) / side * 255).round().to(torch.uint8)
    pixels = torch.stack([x.expand(side, side), x[:, None].expand(side, side), torch.zeros(side, side).byte()])
    plan = Plan((Group(16, count, policy, mix or Mix(), return_boxes=True),))
    local = np.arange(8) if local is None else local
    view_batch = ViewBatch(plan, BatchKey(0, 0, 0, np.arange(8), 8), local)
    needed = len(view_batch.instances)
    aspect = torch.full((needed,), 1.5)
    renderer = Renderer(Normaliser((0.0,) * 3, (1.0,) * 3), functions)
    (views,) = view_batch.render(pixels.expand(needed, 3, side, side).contiguous(), aspect, renderer)
    return views


@pytest.mark.parametrize("steps", [(), (Flip(0.5),), (Flip(0.5), Jitter(0.0, 0.0, 0.0, 0.0))])
@pytest.mark.parametrize("compiled", [False, True])
def test_boxes_locate_the_crops(steps, compiled):
    functions = FunctionCache(lambda function: function) if compiled else None
    views = render(Policy(scale=(0.1, 0.6), steps=steps), functions)
    left, top, width, height = views.boxes.unbind(1)
    assert (width < 0).any() == bool(steps)
    at = (torch.arange(16) + 0.5) / 16
    columns, rows = left[:, None] + width[:, None] * at, top[:, None] + height[:, None] * at
    inner = slice(3, 13)  # at an edge of the image the filter has only one side
    assert torch.allclose(views.pixels[:, 0].mean(1)[:, inner], columns[:, inner], atol=0.02)
    assert torch.allclose(views.pixels[:, 1].mean(2)[:, inner], rows[:, inner], atol=0.02)


def test_boxes_of_mixed_views_are_those_of_the_first_image():
    local = np.array([5, 2])
    alone = render(Policy(steps=(Flip(),))).boxes.view(4, 8, 4)[:, local].flatten(0, 1)
    mixed = render(Policy(steps=(Flip(),)), mix=Mix(mixup=1.0), local=local)
    assert torch.equal(mixed.boxes, alone)


def test_rotated_views_have_no_boxes():
    with pytest.raises(ValueError, match="boxes are not known"):
        render(Policy(steps=(Rotate(10), Flip())))


def drawn(objective, images: int) -> list[Views]:
    """Draw views of noise with random boxes."""
    random = torch.Generator().manual_seed(0)
    return [
        Views(
            torch.randn(group.count * images, 3, group.size, group.size, generator=random, dtype=torch.float64),
            group.count,
            boxes=draw_boxes(group.count, i, images),
        )
        for i, group in enumerate(objective.plan.groups)
    ]


def test_views_without_boxes_are_refused():
    config = EsViTConfig(prototypes=12, hidden=24)
    with pytest.raises(ValueError, match=r"use dino_plan\(config, size\)"):
        EsViT(tiny_backbone(), make_plan("dino", 16), config)
    turned = ViewChanges(rotate=10).apply(dino_plan(config, 16))
    with pytest.raises(ValueError, match="have no boxes"):
        EsViT(tiny_backbone(), turned, config)
    EsViT(tiny_backbone(), turned, replace(config, match="argmax"))


def test_regions_are_matched_within_an_image():
    """The loss of a batch is the mean of the losses of its images, so processes can split it."""
    objective = make("esvit", match="place").double()
    views = drawn(objective, IMAGES)
    together = objective(views, batch_of(IMAGES), None)["region"]
    alone = []
    for i in range(IMAGES):
        own = [
            Views(v.pixels.unflatten(0, (v.count, IMAGES))[:, i], v.count, boxes=v.boxes.view(v.count, IMAGES, 4)[:, i])
            for v in views
        ]
        alone.append(objective(own, batch_of(1), None)["region"])
    torch.testing.assert_close(together, torch.stack(alone).mean(), rtol=1e-5, atol=1e-6)


def test_esvit_by_place_uses_the_boxes_of_its_views():
    objective = make("esvit", match="place", view_weight=0.0, region_weight=1.0).double()
    assert all(group.return_boxes for group in objective.plan.groups)
    views = drawn(objective, IMAGES)
    loss = objective(views, batch_of(IMAGES), None)["region"]

    wide = torch.cat([view.pixels for view in views[:2]])
    student = [objective.backbone(wide).grid, objective.backbone(views[2].pixels).grid]
    teacher = objective.teacher.backbone(wide).grid
    places = [torch.cat([view.boxes for view in views[:2]]), views[2].boxes]
    plan = literal([make_even_regions(some, *grid.shape[-2:]) for some, grid in zip(places, student, strict=True)])
    answers = [
        objective.region_head(grid.flatten(2).unflatten(0, (-1, IMAGES)).permute(1, 0, 3, 2).flatten(1, 2))
        for grid in student
    ]
    mine = (torch.cat(answers, 1) / 0.1).log_softmax(-1)
    theirs = objective.teacher.regions(teacher.flatten(2).unflatten(0, (-1, IMAGES)).permute(1, 0, 3, 2).flatten(1, 2))
    targets = (theirs / 0.04).softmax(-1)
    expected = -(plan[..., None] * targets[:, None] * mine[:, :, None]).sum() / IMAGES
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
