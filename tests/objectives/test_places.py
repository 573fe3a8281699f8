"""Regions that show the same place: against a literal version, and against what the views really show."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.objectives.drawn import batch_of, make
from vitling.objectives.places import plan_by_place
from vitling.views.config import Flip, Group, Jitter, Mix, Plan, Policy, Rotate
from vitling.views.drawing import Drawing, Place
from vitling.views.easel import Brush, Easel, Normaliser, Views

IMAGES = 3


def some_places(views: int, seed: int, images: int = IMAGES) -> torch.Tensor:
    """Boxes in images, every other one mirrored."""
    random = torch.Generator().manual_seed(seed)
    sides = 0.2 + 0.7 * torch.rand(views * images, 2, generator=random)
    left, top = (torch.rand(views * images, 2, generator=random) * (1 - sides)).unbind(1)
    width, height = sides.unbind(1)
    mirrored = torch.arange(len(left)) % 2 == 1
    return torch.stack(
        [torch.where(mirrored, left + width, left), top, torch.where(mirrored, -width, width), height], 1
    )


def middles(place: torch.Tensor, grid: tuple[int, int], rows: list[int], columns: list[int]) -> list[tuple]:
    """In the image, of the regions that take part, row by row."""
    left, top, width, height = place.tolist()
    return [(top + height * (r + 0.5) / grid[0], left + width * (c + 0.5) / grid[1]) for r in rows for c in columns]


def literal(seen, stride: int = 1) -> torch.Tensor:
    def taking_part(side: int) -> list[int]:
        return list(range((side - 1) % stride // 2, side, stride))

    def tent(at: float, keys: list[float]) -> list[float]:
        at = min(max(at, keys[0]), keys[-1])
        apart = keys[1] - keys[0] if len(keys) > 1 else 1.0
        return [max(0.0, 1 - abs(at - key) / apart) for key in keys]

    theirs, other = seen[0]
    down, across = (taking_part(side) for side in other)
    plans = []
    for b in range(IMAGES):
        lines, view = [], -1
        for places, grid in seen:
            rows, columns = (taking_part(side) for side in grid)
            for v in range(len(places) // IMAGES):
                view += 1
                for y, x in middles(places[v * IMAGES + b], grid, rows, columns):
                    line = []
                    for g in range(len(theirs) // IMAGES):
                        left, top, width, height = theirs[g * IMAGES + b].tolist()
                        fy, fx = (y - top) / height, (x - left) / width
                        outside = not (0 <= fy <= 1 and 0 <= fx <= 1)
                        by_row = tent(fy, [(r + 0.5) / other[0] for r in down])
                        by_column = tent(fx, [(c + 0.5) / other[1] for c in across])
                        none = outside or view == g
                        line += [0.0 if none else p * q for p, q in itertools.product(by_row, by_column)]
                    lines.append(torch.tensor(line) / (len(rows) * len(columns)))
        plan = torch.stack(lines)
        plans.append(plan / plan.sum() if plan.sum() else plan)
    return torch.stack(plans)


@pytest.mark.parametrize("stride", [1, 2])
def test_plan_is_the_literal_one_for_grids_that_are_not_square(stride):
    wide = some_places(2, 0)
    seen = [(wide, (4, 5)), (some_places(3, 1), (2, 3)), (some_places(1, 2), (1, 1))]
    found = plan_by_place(seen, IMAGES, stride)
    expected = literal(seen, stride)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.sum((1, 2)), torch.ones(IMAGES))


def test_a_view_that_is_the_other_one_mirrored_belongs_to_it_region_by_region():
    whole, mirrored = torch.tensor([[0.0, 0, 1, 1]] * IMAGES), torch.tensor([[1.0, 0, -1, 1]] * IMAGES)
    wide = torch.cat([whole, mirrored])
    plan = plan_by_place([(wide, (2, 3))], IMAGES)[0]
    assert torch.allclose(plan[:6, 6:], torch.eye(6).view(6, 2, 3).flip(-1).reshape(6, 6) / 12)
    assert not plan[:6, :6].any()  # not with itself


def test_views_that_do_not_overlap_have_no_share_and_no_nan():
    apart = torch.tensor([[0.0, 0, 0.3, 0.3]] * IMAGES + [[0.6, 0.6, 0.3, 0.3]] * IMAGES)
    plan = plan_by_place([(apart, (3, 3))], IMAGES)
    assert not plan.any()
    assert plan.isfinite().all()


def painted(policy: Policy, brush: Brush | None = None, mix: Mix | None = None, local: np.ndarray | None = None):
    """Views of images whose red is x and green is y, and where they say they lie."""
    side, count = 64, 4
    x = ((torch.arange(side) + 0.5) / side * 255).round().to(torch.uint8)
    pixels = torch.stack([x.expand(side, side), x[:, None].expand(side, side), torch.zeros(side, side).byte()])
    plan = Plan((Group(16, count, policy, mix or Mix(), located=True),))
    local = np.arange(8) if local is None else local
    drawing = Drawing(plan, Place(0, 0, 0, np.arange(8), 8), local)
    needed = len(drawing.instances)
    aspect = torch.full((needed,), 1.5)
    easel = Easel(Normaliser((0.0,) * 3, (1.0,) * 3), brush)
    (views,) = drawing.draw(pixels.expand(needed, 3, side, side).contiguous(), aspect, easel)
    return views


@pytest.mark.parametrize("steps", [(), (Flip(0.5),), (Flip(0.5), Jitter(0.0, 0.0, 0.0, 0.0))])
@pytest.mark.parametrize("compiled", [False, True])
def test_places_are_where_the_views_were_cut(steps, compiled):
    brush = Brush(lambda function: function) if compiled else None
    views = painted(Policy(scale=(0.1, 0.6), steps=steps), brush)
    left, top, width, height = views.places.unbind(1)
    assert (width < 0).any() == bool(steps)
    at = (torch.arange(16) + 0.5) / 16
    columns, rows = left[:, None] + width[:, None] * at, top[:, None] + height[:, None] * at
    inner = slice(3, 13)  # at an edge of the image the filter has only one side
    assert torch.allclose(views.pixels[:, 0].mean(1)[:, inner], columns[:, inner], atol=0.02)
    assert torch.allclose(views.pixels[:, 1].mean(2)[:, inner], rows[:, inner], atol=0.02)


def test_places_are_those_of_the_batchs_own_images_where_others_are_mixed_in():
    local = np.array([5, 2])
    alone = painted(Policy(steps=(Flip(),))).places.view(4, 8, 4)[:, local].flatten(0, 1)
    mixed = painted(Policy(steps=(Flip(),)), mix=Mix(mixup=1.0), local=local)
    assert torch.equal(mixed.places, alone)


def test_views_that_are_turned_have_no_places():
    with pytest.raises(ValueError, match="places are not known"):
        painted(Policy(steps=(Rotate(10), Flip())))


def drawn(objective, images: int) -> list[Views]:
    """Noise from places of its own."""
    random = torch.Generator().manual_seed(0)
    return [
        Views(
            torch.randn(group.count * images, 3, group.size, group.size, generator=random, dtype=torch.float64),
            group.count,
            places=some_places(group.count, i, images),
        )
        for i, group in enumerate(objective.plan.groups)
    ]


def test_an_image_is_matched_within_itself():
    """The loss of some images is the mean of the losses of each, in whatever process they are."""
    objective = make("esvit", match="place").double()
    views = drawn(objective, IMAGES)
    together = objective(views, batch_of(IMAGES), None)["region"]
    alone = []
    for i in range(IMAGES):
        own = [
            Views(
                v.pixels.unflatten(0, (v.count, IMAGES))[:, i], v.count, places=v.places.view(v.count, IMAGES, 4)[:, i]
            )
            for v in views
        ]
        alone.append(objective(own, batch_of(1), None)["region"])
    torch.testing.assert_close(together, torch.stack(alone).mean(), rtol=1e-5, atol=1e-6)


def test_esvit_by_place_compares_regions_by_the_views_places():
    objective = make("esvit", match="place", view_weight=0.0, region_weight=1.0).double()
    assert all(group.located for group in objective.plan.groups)
    views = drawn(objective, IMAGES)
    loss = objective(views, batch_of(IMAGES), None)["region"]

    wide = torch.cat([view.pixels for view in views[:2]])
    student = [objective.backbone(wide).grid, objective.backbone(views[2].pixels).grid]
    teacher = objective.teacher.backbone(wide).grid
    sides = [tuple(grid.shape[-2:]) for grid in student]
    located = [(torch.cat([view.places for view in views[:2]]), sides[0]), (views[2].places, sides[1])]
    plan = literal(located)
    answers = [
        objective.region_head(grid.flatten(2).unflatten(0, (-1, IMAGES)).permute(1, 0, 3, 2).flatten(1, 2))
        for grid in student
    ]
    mine = (torch.cat(answers, 1) / 0.1).log_softmax(-1)
    theirs = objective.teacher.regions(teacher.flatten(2).unflatten(0, (-1, IMAGES)).permute(1, 0, 3, 2).flatten(1, 2))
    targets = (theirs / 0.04).softmax(-1)
    expected = -(plan[..., None] * targets[:, None] * mine[:, :, None]).sum() / IMAGES
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
