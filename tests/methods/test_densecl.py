"""DenseCL against a slow, literal version."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.methods.helpers import START, batch_of, make, noise, step
from tests.tiny import tiny_backbone
from vitling.methods.densecl.loss import DenseCL
from vitling.methods.moco_v2.loss import MoCoV2
from vitling.methods.moco_v2.settings import MoCoV2Config
from vitling.views.policies import make_plan


def make_apart(**settings) -> DenseCL:
    """Make an objective whose copy differs from the network that it follows."""
    objective = make("densecl", **settings)
    torch.nn.init.normal_(objective.copy.regions[2].weight)
    return objective


@torch.no_grad()
def literal(objective: DenseCL, views, ids) -> float:
    """Compute its Eq. 2, image by image and region by region, with the matches of its Eq. 3."""
    n, t, total = len(ids), objective.config.temperature, 0.0
    pixels = views[0].pixels
    for i in range(n):
        f = objective.backbone(pixels[i : i + 1]).grid[0].flatten(1).T
        other = objective.copy.backbone(pixels[n + i : n + i + 1]).grid[0].flatten(1).T
        for region in f:
            best = max(range(len(other)), key=lambda j: float(F.cosine_similarity(region, other[j], dim=0)))
            r, positive = objective.dense_head(region), objective.copy.regions(other[best])
            r, positive = r / r.norm(), positive / positive.norm()
            right, wrong = math.exp(float(r @ positive) / t), 0.0
            for key, image in zip(objective.dense_queue.keys, objective.dense_queue.ids):
                if not (objective.config.mask_own and image == ids[i]):
                    wrong += math.exp(float(r @ key) / t)
            total -= math.log(right / (right + wrong)) / len(f)
    return total / n


@pytest.mark.parametrize("masks", [False, True])
def test_the_loss_matches_a_literal_version(masks):
    objective = make_apart(mask_own=masks)
    objective.dense_queue.ids[:6] = torch.tensor([5, 5, 0, 3, 1, 5])
    batch = batch_of(4, first=2)
    views = noise(objective, 4)
    terms = objective(views, batch, START)
    assert terms["dense"].item() == pytest.approx(literal(objective, views, batch.ids), rel=1e-5)
    torch.testing.assert_close(objective.total(terms, START), (terms["contrast"] + terms["dense"]) / 2)


def test_the_other_term_is_that_of_moco_v2():
    objective = make_apart(dense_weight=0.25)
    moco = MoCoV2(tiny_backbone(), make_plan("moco-v2", 16), MoCoV2Config(dim=8, queue=10))
    found = moco.load_state_dict(objective.state_dict(), strict=False)
    assert not found.missing_keys
    views = noise(moco, 3)
    terms = objective(views, batch_of(3), START)
    assert torch.equal(moco(views, batch_of(3), START)["contrast"], terms["contrast"])
    torch.testing.assert_close(objective.total(terms, START), 0.75 * terms["contrast"] + 0.25 * terms["dense"])


def test_the_queue_of_regions_has_a_mean_for_each_image():
    objective = make_apart()
    views = noise(objective, 4, 1)
    with torch.no_grad():
        grid = objective.copy.backbone(views[0].pixels[4:]).grid
        keys = torch.stack([objective.copy.regions(one.flatten(1).T).mean(0) for one in grid])
    step(objective, torch.optim.SGD(objective.param_groups(0.0), lr=0.1), 1)
    assert objective.dense_queue.ids.tolist() == [4, 5, 6, 7, -1, -1, -1, -1, -1, -1]
    torch.testing.assert_close(objective.dense_queue.keys[:4], F.normalize(keys, dim=1))
    assert objective.health().keys() == {"queue", "dense queue"}
    assert objective.uniform_loss() == {"contrast": math.log(11), "dense": math.log(11)}
