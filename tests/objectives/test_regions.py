"""Matchings and losses between regions against slow, literal versions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.objectives.helpers import draw_regions, gradients, inputs, random
from vitling.objectives import regions
from vitling.objectives.regions import (
    cross_entropy,
    join_regions,
    match_by_features,
    split_regions,
    squared_distance,
    subsample,
)


def test_regions_of_an_oblong_map():
    grid = random(6, 5, 2, 3)  # three views of two images
    found = split_regions(grid, 2)
    assert found.shape == (2, 3, 6, 5)
    for view in range(3):
        for image in range(2):
            for i in range(6):
                assert torch.equal(found[image, view, i], grid[view * 2 + image, :, i // 3, i % 3])


def places(side: int, stride: int) -> list[int]:
    """List the most places at this stride, centred as well as possible (the first of two)."""
    rows = [list(range(first, side, stride)) for first in range(stride)]
    most = max(map(len, rows))
    return min((row for row in rows if len(row) == most), key=lambda row: abs(row[0] - (side - 1 - row[-1])))


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 20])
def test_sampled_places_are_evenly_spaced(stride):
    for height, width in ((14, 14), (6, 6), (7, 3), (1, 4), (8, 5)):
        grid = random(2, 3, height, width)
        expected = grid[:, :, places(height, stride)][..., places(width, stride)]
        assert torch.equal(subsample(grid, stride), expected)


def test_every_second_token_of_deit_gives_the_grid_of_swin():
    assert subsample(random(1, 1, 14, 14), 2).shape[2:] == (7, 7)  # 224 px
    assert subsample(random(1, 1, 6, 6), 2).shape[2:] == (3, 3)  # 96 px


def test_the_gradient_reaches_sampled_places_only():
    grid = random(2, 3, 5, 6).requires_grad_()
    (slope,) = torch.autograd.grad(subsample(grid, 2).square().sum(), grid)
    there = torch.zeros(5, 6)
    for row in (0, 2, 4):
        for column in (0, 2, 4):
            there[row, column] = 1
    torch.testing.assert_close(slope, 2 * grid.detach() * there)


# --- matching --------------------------------------------------------------------------------------


def literal_matching(seen: list[torch.Tensor], taught: torch.Tensor) -> torch.Tensor:
    """Compute Eq. 2 region by region: j* = argmax cosine; 1 / |P| per pair and 1 / T per region."""
    views = [view for some in seen for view in some.unbind(1)]
    teachers, theirs = taught.shape[1:3]
    pairs = sum(s != t for s in range(len(views)) for t in range(teachers))
    matching = torch.zeros(len(taught), sum(view.shape[1] for view in views), teachers * theirs)
    for image in range(len(taught)):
        row = 0
        for s, view in enumerate(views):
            for z in view[image]:
                for t in range(teachers):
                    if s != t:
                        cosines = [float(F.cosine_similarity(z, other, dim=0)) for other in taught[image, t]]
                        best = max(range(theirs), key=cosines.__getitem__)
                        matching[image, row, t * theirs + best] = 1 / (pairs * view.shape[1])
                row += 1
    return matching


def test_matching_equals_equation_2():
    seen, taught = draw_regions()
    taught = taught * random(3, 2, 12, 1, seed=5).exp()  # lengths do not count
    matching = match_by_features(seen, taught)
    torch.testing.assert_close(matching, literal_matching(seen, taught))
    torch.testing.assert_close(matching.sum((1, 2)), torch.ones(3))


def test_local_views_are_optional():
    seen, taught = draw_regions()
    torch.testing.assert_close(match_by_features(seen[:1], taught), literal_matching(seen[:1], taught))


@pytest.mark.parametrize("match", ["argmax", "sinkhorn"])
def test_permuted_images_and_local_views_have_permuted_matchings(match):
    seen, taught = draw_regions()
    matching = match_by_features(seen, taught, match)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(match_by_features([some[order] for some in seen], taught[order], match), matching[order])
    turned = match_by_features([seen[0], seen[1][:, order], seen[2]], taught, match)
    torch.testing.assert_close(turned[:, 24:36].view(3, 3, 4, -1), matching[:, 24:36].view(3, 3, 4, -1)[:, order])


def test_permuted_global_views_have_permuted_matchings():
    seen, taught = draw_regions()
    matching = match_by_features(seen, taught).view(3, -1, 2, 12)
    turned = match_by_features([seen[0].flip(1), *seen[1:]], taught.flip(1)).view(3, -1, 2, 12).flip(2)
    torch.testing.assert_close(turned[:, 24:], matching[:, 24:])
    torch.testing.assert_close(turned[:, :24].view(3, 2, 12, 2, 12).flip(1).flatten(1, 2), matching[:, :24])


def test_matching_has_no_gradient():
    seen, taught = draw_regions()
    assert not match_by_features([some.requires_grad_() for some in seen], taught).requires_grad


def literal_transport(cosines: torch.Tensor) -> torch.Tensor:
    """Run Sinkhorn by scaling rows and columns of exp(cosine / epsilon) in turn."""
    rows, columns = cosines.shape
    kernel = (cosines.double() / regions.SHARPNESS).exp()
    a, b = torch.ones(rows).double(), torch.ones(columns).double()
    for _ in range(regions.ROUNDS):
        b = (rows / columns) / (kernel.T @ a)
        a = 1 / (kernel @ b)
    return (a[:, None] * kernel * b).float()


def test_optimal_transport_matches_a_literal_version():
    seen, taught = draw_regions()
    matching = match_by_features(seen, taught, "sinkhorn")
    torch.testing.assert_close(matching.sum((1, 2)), torch.ones(3))
    pairs = 2 * 5
    view, row = seen[1][:, 1], 24 + 4  # the second of the first local size
    for image in range(3):
        for t in range(2):
            cosines = F.normalize(view[image], dim=1) @ F.normalize(taught[image, t], dim=1).T
            found = matching[image, row : row + 4, t * 12 : t * 12 + 12] * pairs * 4
            torch.testing.assert_close(found, literal_transport(cosines), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(found.sum(1), torch.ones(4))
    assert not matching[:, :12, :12].any()
    assert not matching[:, 12:24, 12:].any()


# --- losses --------------------------------------------------------------------------------------------------


def literal(student, prototypes, temperature, teacher, teacher_prototypes, centre, teacher_temperature, matching):
    """Compute all outputs at once, as in Algorithm 1."""
    q = (student @ prototypes.T / temperature).softmax(-1)
    p = ((teacher @ teacher_prototypes.T - centre) / teacher_temperature).softmax(-1)
    return -(matching[..., None] * p[:, None] * q.log()[:, :, None]).sum() / len(matching)


@pytest.mark.parametrize("block", [1, 2 * (39 + 24) * 20, regions.BLOCK])
def test_loss_and_gradients_match_a_literal_version(block, monkeypatch):
    """Blocks have one image, two (the last alone) or all."""
    monkeypatch.setattr(regions, "BLOCK", block)
    arguments = inputs()
    torch.testing.assert_close(cross_entropy(**arguments), literal(**arguments))
    found, expected = (gradients(3 * make(**arguments), arguments) for make in (cross_entropy, literal))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_soft_matchings_weight_the_loss():
    arguments = inputs() | {"matching": match_by_features(*draw_regions(5), "sinkhorn")}
    torch.testing.assert_close(cross_entropy(**arguments), literal(**arguments))


def test_bf16_is_close_to_float32():
    arguments = inputs(images=16, k=512)
    exact = cross_entropy(**arguments)
    slopes = gradients(exact, arguments)
    with torch.autocast("cpu", torch.bfloat16):
        rough = cross_entropy(**arguments)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=2e-4, atol=0)
    for a, b in zip(gradients(rough, arguments), slopes):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.02 * b.norm()


def test_uniform_outputs_cost_ln_k():
    arguments = inputs() | {"student": torch.zeros(5, 39, 8)}
    assert cross_entropy(**arguments).item() == pytest.approx(math.log(20), rel=1e-5)


def test_extreme_logits_stay_finite():
    arguments = inputs() | {"temperature": 1e-4, "teacher_temperature": torch.tensor(1e-4)}
    loss = cross_entropy(**arguments)
    assert loss.isfinite()
    assert all(slope.isfinite().all() for slope in gradients(loss, arguments))


@pytest.mark.parametrize("least", [1e-9, 0.0])
def test_log_sum_follows_from_any_logit(least):
    """Use the first logit, or the largest."""
    logits = 3 * random(40, 500)
    found = regions._log_sums(logits, logits.softmax(1), least)
    torch.testing.assert_close(found, logits.logsumexp(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.1, 0.01])
def test_rounded_probabilities_keep_the_sum(dtype, temperature):
    """The student's vectors lie on a prototype or opposite to it, so the other probabilities are minimal."""
    arguments = inputs(images=2, k=256) | {"temperature": temperature}
    with torch.no_grad():
        arguments["student"].copy_(arguments["prototypes"][0] * torch.tensor([1.0, -1.0])[:, None, None])
    with torch.autocast("cpu", dtype):
        rough = cross_entropy(**arguments)
    torch.testing.assert_close(rough, cross_entropy(**arguments), rtol=5e-3, atol=0)


def test_rows_of_k_logits_are_not_kept(monkeypatch):
    """Tensors saved for backward are no larger than the vectors and the prototypes."""
    monkeypatch.setattr(regions, "BLOCK", 1)
    arguments, held = inputs(k=4096), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
        cross_entropy(**arguments)
    assert max(held) <= 4096 * 8


def test_squared_distance_matches_a_literal_version():
    arguments = inputs()
    u, v, matching = arguments["student"], arguments["teacher"], arguments["matching"]
    expected = (matching * (u[:, :, None] - v[:, None]).square().sum(-1)).sum() / 5
    torch.testing.assert_close(squared_distance(u, v, matching), expected)


def test_views_of_several_sizes_are_concatenated():
    seen, _ = draw_regions()
    flat = join_regions(seen)
    assert flat.shape == (3, 39, 6)
    assert torch.equal(flat[:, 24 + 8 : 24 + 12], seen[1][:, 2])
    assert torch.equal(flat[:, 36:], seen[2][:, 0])
