"""BYOL against a slow, literal version."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.methods.helpers import START, batch_of, make, noise, step
from vitling.methods.byol.loss import BYOL, distance


def test_the_loss_matches_a_literal_version():
    """Eq. 2 for both views, image by image: 2 - 2 <q, z> / (|q| |z|)."""
    objective, fresh = make("byol"), make("byol")
    views = noise(objective, 5)
    loss = objective(views, batch_of(5), START)["prediction"]
    with torch.no_grad():
        q = [fresh.predictor(fresh.projector(fresh.backbone(v.pixels).pooled)) for v in views]
        z = [fresh.copy.head(fresh.copy.backbone(v.pixels).pooled) for v in views]
    expected = 0.0
    for i in range(5):
        for a, b in ((q[0], z[1]), (q[1], z[0])):
            expected += (2 - 2 * float(a[i] @ b[i]) / float(a[i].norm() * b[i].norm())) / 5
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_equal_directions_cost_nothing_and_opposite_ones_four():
    rows = torch.randn(6, 8)
    assert distance(3 * rows, rows).item() == pytest.approx(0, abs=1e-6)
    assert distance(-rows, 5 * rows).item() == pytest.approx(4, rel=1e-6)
    right_angle = F.pad(rows, (0, 8)), F.pad(rows, (8, 0))
    assert distance(*right_angle).item() == pytest.approx(2, rel=1e-6)


@torch.no_grad()
def literal_regions(objective: BYOL, views, measure) -> float:
    """Compute both directions, region by region."""
    mine, theirs = (
        [network(v.pixels).grid.flatten(2).transpose(1, 2) for v in views]
        for network in (objective.backbone, objective.copy.backbone)
    )
    predicted = [objective.region_predictor(objective.region_projector(z.flatten(0, 1))).view(5, -1, 8) for z in mine]
    targets = [objective.copy.regions(z.flatten(0, 1)).view(5, -1, 8) for z in theirs]
    total = 0.0
    for s, t in ((0, 1), (1, 0)):
        for i in range(5):
            for r, z in enumerate(mine[s][i]):
                cosines = [float(F.cosine_similarity(z, other, dim=0)) for other in theirs[t][i]]
                best = max(range(len(cosines)), key=cosines.__getitem__)
                a, b = predicted[s][i, r], targets[t][i, best]
                total += float(measure(a / a.norm(), b / b.norm())) / (5 * len(mine[s][i]))
    return total


def test_regions_by_distance_match_a_literal_version():
    objective, fresh = make("byol", regions="mse"), make("byol", regions="mse")
    views = noise(objective, 5)
    terms = objective(views, batch_of(5), START)
    expected = literal_regions(fresh, views, lambda a, b: (a - b).square().sum())
    assert terms["region"].item() == pytest.approx(expected, rel=1e-4)
    assert objective.uniform_loss() == {}
    torch.testing.assert_close(terms["prediction"], make("byol")(views, batch_of(5), START)["prediction"])
    assert objective.total(terms, START).item() == pytest.approx(terms["prediction"].item() + expected, rel=1e-4)


def test_regions_by_a_softmax_match_a_literal_version():
    objective, fresh = make("byol", regions="softmax"), make("byol", regions="softmax")
    centre = objective.centre.mean.normal_(std=0.1).clone()
    views = noise(objective, 5)
    found = objective(views, batch_of(5), START)["region"]

    def measure(a, b):
        return -(((b - centre) / 0.04).softmax(0) * (a / 0.1).softmax(0).log()).sum()

    assert found.item() == pytest.approx(literal_regions(fresh, views, measure), rel=1e-4)
    assert objective.uniform_loss() == {"region": pytest.approx(2 * math.log(8))}


@pytest.mark.parametrize("regions", ["mse", "softmax"])
def test_regions_are_trained_and_followed(regions):
    objective = make("byol", regions=regions, region_weight=2.0)
    before = [p.clone() for p in objective.copy.regions.parameters()]
    optimiser = torch.optim.SGD(objective.param_groups(0.0), lr=0.5)
    for seed in (1, 2):
        step(objective, optimiser, seed)
    assert all(p.grad is not None for p in objective.parameters() if p.requires_grad)
    followed = objective.copy.regions.parameters()
    assert any(not torch.equal(p, q) for p, q in zip(before, followed, strict=True))
    if regions == "softmax":
        assert objective.centre.mean.any()


def test_distances_have_no_uniform_loss():
    assert make("byol").uniform_loss() == {}
