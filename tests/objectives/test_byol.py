"""BYOL against a slow, literal version."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.objectives.drawn import START, batch_of, noise
from tests.tiny import tiny_backbone
from vitling.errors import UserError
from vitling.objectives import BYOL, BYOLConfig
from vitling.objectives.byol import distance
from vitling.views.policies import named


def make() -> BYOL:
    torch.manual_seed(0)
    return BYOL(tiny_backbone(), named("byol", 16), BYOLConfig(dim=8, hidden=24))


def test_it_is_the_literal_loss():
    """Eq. 2 for both views, image by image: 2 - 2 <q, z> / (|q| |z|)."""
    objective, fresh = make(), make()
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


def test_there_is_no_loss_of_guessing():
    assert make().uniform_loss() == {}


@pytest.mark.parametrize("settings", [{"dim": 0}, {"hidden": -1}, {"momentum": 2.0}], ids=str)
def test_settings_that_cannot_be(settings):
    with pytest.raises(UserError, match="BYOL"):
        BYOLConfig(**settings).check()
