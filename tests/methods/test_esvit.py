"""EsViT against Algorithm 1, read line by line, with the cosine that Eq. 2 states."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.methods.helpers import START, batch_of, noise, step
from tests.tiny import tiny_backbone
from vitling.backbones import create
from vitling.methods.dino.loss import DINO
from vitling.methods.dino.settings import DINOConfig, dino_plan
from vitling.methods.esvit.loss import EsViT
from vitling.methods.esvit.settings import EsViTConfig
from vitling.objectives.progress import Progress
from vitling.views import Views

SMALL = EsViTConfig(local_crops=3, prototypes=12, hidden=24, bottleneck=8, match="argmax")


def make(**settings) -> EsViT:
    torch.manual_seed(0)
    config = replace(SMALL, **settings)
    objective = EsViT(tiny_backbone(), dino_plan(config, 16), config)
    with torch.no_grad():  # as after some steps: teacher and centres are not those of the start
        for p in objective.teacher.parameters():
            p.add_(0.2 * p.std(correction=0) * torch.randn_like(p))
        objective.centre.mean.normal_(std=0.1)
        objective.region_centre.mean.normal_(std=0.1)
    objective.teacher_temperature.fill_(0.05)
    return objective


# --- Algorithm 1 ----------------------------------------------------------------------------------------------------


def outputs(network, head, region_head, crop, stride=1):
    """Return p [n, K], pz [n, T, K] and z [n, T, P] (lines 5 to 8) before the softmax, for every `stride`-th region."""
    features = network(crop)
    z = features.grid[:, :, ::stride, ::stride].flatten(2).permute(0, 2, 1)
    return head(features.pooled), region_head(z), z


def hv(s, t, objective):
    """Follow lines 20 to 24."""
    s = (s / objective.config.temperature).softmax(-1)
    t = ((t - objective.centre.mean) / objective.teacher_temperature).softmax(-1)
    return -(t * s.log()).sum(-1).mean()


def hr(ps, pt, zs, zt, objective):
    """Follow lines 25 to 32; line 29 with features of unit length."""
    ps = (ps / objective.config.temperature).softmax(-1)
    pt = ((pt - objective.region_centre.mean) / objective.teacher_temperature).softmax(-1)
    similarity = torch.matmul(F.normalize(zs, dim=-1), F.normalize(zt, dim=-1).permute(0, 2, 1))
    index = similarity.max(dim=-1)[1].unsqueeze(2)
    matched = torch.gather(pt, 1, index.expand(-1, -1, pt.size(2)))
    return -(matched * ps.log()).sum(-1).mean()


def algorithm_1(objective: EsViT, views: list[Views]) -> tuple[torch.Tensor, torch.Tensor]:
    """Average over all pairs of a global view of the teacher and another of the student."""
    crops = [crop for view in views for crop in view.pixels.split(len(views[0].pixels) // views[0].count)]
    teacher, stride = objective.teacher, objective.config.region_stride
    student = [outputs(objective.backbone, objective.head, objective.region_head, crop, stride) for crop in crops]
    with torch.no_grad():
        wide = crops[: objective.config.global_crops]
        taught = [outputs(teacher.backbone, teacher.head, teacher.regions, crop, stride) for crop in wide]
    pairs = [(s, t) for t in range(len(taught)) for s in range(len(student)) if s != t]
    loss_v = sum(hv(student[s][0], taught[t][0], objective) for s, t in pairs) / len(pairs)
    loss_r = sum(hr(student[s][1], taught[t][1], student[s][2], taught[t][2], objective) for s, t in pairs) / len(pairs)
    return loss_v, loss_r


def slopes(loss: torch.Tensor, objective: EsViT) -> list[torch.Tensor | None]:
    return torch.autograd.grad(loss, [p for p in objective.parameters() if p.requires_grad], allow_unused=True)


@pytest.mark.parametrize(("global_crops", "local_crops"), [(2, 3), (2, 0), (1, 2), (3, 1)])
def test_it_is_algorithm_1(global_crops, local_crops):
    """Both terms, their sum by halves, and every gradient."""
    objective = make(global_crops=global_crops, local_crops=local_crops)
    views = noise(objective, 3)
    terms = objective(views, batch_of(3), START)
    view, region = algorithm_1(objective, views)
    torch.testing.assert_close(terms["view"], view, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["region"], region, rtol=1e-4, atol=1e-5)
    total = objective.total(terms, START)
    torch.testing.assert_close(total, view / 2 + region / 2, rtol=1e-4, atol=1e-5)
    for found, expected in zip(slopes(total, objective), slopes(view / 2 + region / 2, objective), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_it_is_algorithm_1_for_sampled_regions():
    """Take every second of 4 x 4 and 2 x 2 regions, down and across; the head runs on no others."""
    objective = make(region_stride=2)
    views, shapes = noise(objective, 3), []
    objective.region_head.mlp.register_forward_pre_hook(lambda module, inputs: shapes.append(inputs[0].shape[:-1]))
    terms = objective(views, batch_of(3), START)
    assert shapes == [(3, 2 * 4 + 3 * 1)]
    view, region = algorithm_1(objective, views)
    torch.testing.assert_close(terms["region"], region, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["view"], view, rtol=1e-4, atol=1e-5)
    for found, expected in zip(slopes(terms["region"], objective), slopes(region, objective), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_uniform_outputs_cost_ln_k():
    objective = make()
    with torch.no_grad():
        for head in (objective.head, objective.region_head):
            head.mlp[-1].weight.zero_()
    terms = objective(noise(objective, 3), batch_of(3), START)
    assert {name: pytest.approx(value.item(), rel=1e-5) for name, value in terms.items()} == objective.uniform_loss()
    assert objective.uniform_loss() == {"view": math.log(12), "region": math.log(12)}


def reorder(views: Views, order: torch.Tensor) -> Views:
    """Reorder the rows, and their boxes if there are any."""
    return Views(views.pixels[order], views.count, boxes=None if views.boxes is None else views.boxes[order])


@pytest.mark.parametrize("match", ["argmax", "sinkhorn", "place"])
def test_the_order_of_images_and_views_changes_nothing(match):
    objective = make(match=match)
    views = noise(objective, 4)
    before = objective(views, batch_of(4), START)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = [reorder(v, torch.arange(4 * v.count).view(-1, 4)[:, order].flatten()) for v in views]
    local = reorder(views[2], torch.arange(12).view(3, 4).flip(0).flatten())
    for other in (shuffled, [views[1], views[0], views[2]], [*views[:2], local]):
        for name, value in objective(other, batch_of(4), START).items():
            torch.testing.assert_close(value, before[name], rtol=1e-5, atol=1e-6)


def test_an_image_is_matched_within_itself():
    """The loss of two images is the mean of the losses of each."""
    objective = make()
    views = noise(objective, 2)
    both = objective(views, batch_of(2), START)
    alone = [
        objective([Views(v.pixels.unflatten(0, (v.count, 2))[:, i], v.count) for v in views], batch_of(1), START)
        for i in range(2)
    ]
    for name, value in both.items():
        torch.testing.assert_close(value, (alone[0][name] + alone[1][name]) / 2)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "resnet18"])
def test_multi_stage_networks_and_those_without_a_last_norm(name):
    torch.manual_seed(0)
    config = replace(SMALL, local_crops=1, local_size=32)
    objective = EsViT(create(name, 64), dino_plan(config, 64), config).eval()
    views = noise(objective, 2)
    terms = objective(views, batch_of(2), START)
    expected = algorithm_1(objective, views)
    torch.testing.assert_close(torch.stack([*terms.values()]), torch.stack(expected), rtol=1e-3, atol=1e-4)


# --- centres, halves, phases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2])
def test_each_loss_has_its_own_centre_and_all_regions_count(stride):
    objective = make(centre=0.9, region_stride=stride)
    before = objective.centre.mean.clone(), objective.region_centre.mean.clone()
    views = noise(objective, 4, 1)
    with torch.no_grad():
        teacher = objective.teacher
        wide = torch.cat([v.pixels for v in views[:2]])
        p, pz, _ = outputs(teacher.backbone, teacher.head, teacher.regions, wide, stride)
    step(objective, torch.optim.SGD(objective.param_groups(0.0), lr=0.1), 1)
    torch.testing.assert_close(objective.centre.mean, 0.9 * before[0] + 0.1 * p.mean(0))
    torch.testing.assert_close(objective.region_centre.mean, 0.9 * before[1] + 0.1 * pz.mean((0, 1)))


def test_the_health_of_regions_samples_every_place():
    """Images of eight regions each, whose place is their answer, in batches of four."""
    objective = make(bottleneck=12)
    places = torch.eye(12)[:8].expand(4, 8, 12)
    objective.region_centre.begin()
    for first in (20, 24):
        objective._update_centre(places, torch.eye(12), torch.arange(first, first + 4))
    objective.region_centre.move()
    assert objective.region_centre.answered.topk(8).indices.sort().values.tolist() == list(range(8))
    assert objective.health().keys() == {"answers", "answers to regions"}


def test_without_regions_it_is_dino():
    alone = make(region_weight=0.0, view_weight=1.0)
    assert alone.region_head is None
    torch.manual_seed(0)
    config = DINOConfig(local_crops=3, prototypes=12, hidden=24, bottleneck=8)
    dino = DINO(tiny_backbone(), dino_plan(config, 16), config)
    found = dino.load_state_dict(alone.state_dict(), strict=False)
    assert not found.missing_keys
    assert all(name.startswith("region_centre") for name in found.unexpected_keys)
    dino.teacher_temperature.fill_(0.05)
    views = noise(dino, 3)
    assert torch.equal(dino(views, batch_of(3), START)["view"], alone(views, batch_of(3), START)["view"])


def test_regions_alone():
    objective, both = make(view_weight=0.0, region_weight=1.0), make()
    views = noise(both, 3)
    terms = objective(views, batch_of(3), START)
    torch.testing.assert_close(terms, {"region": both(views, batch_of(3), START)["region"]})
    assert objective.uniform_loss() == {"region": math.log(12)}
    optimiser = torch.optim.AdamW(objective.param_groups(0.1), lr=1e-2)
    centre = objective.centre.mean.clone()
    step(objective, optimiser, 1)
    assert torch.equal(objective.centre.mean, centre)
    trained = {id(p) for group in optimiser.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in objective.head.parameters()}
    assert all(p.grad is not None for group in optimiser.param_groups for p in group["params"])


def test_squared_distance_instead_of_the_softmax():
    objective = make(region_loss="mse")
    views = noise(objective, 3)
    found = objective(views, batch_of(3), START)["region"]
    crops = [crop for view in views for crop in view.pixels.split(3)]
    total, pairs = 0.0, 0
    with torch.no_grad():
        for t in range(2):
            theirs = objective.teacher.backbone(crops[t]).grid.flatten(2).permute(0, 2, 1)
            for s, crop in enumerate(crops):
                if s == t:
                    continue
                pairs += 1
                mine = objective.backbone(crop).grid.flatten(2).permute(0, 2, 1)
                index = (F.normalize(mine, dim=-1) @ F.normalize(theirs, dim=-1).transpose(1, 2)).argmax(-1)
                v = F.normalize(objective.teacher.regions.mlp(theirs), dim=-1)
                u = F.normalize(objective.region_head.mlp(mine), dim=-1)
                matched = torch.gather(v, 1, index[..., None].expand(-1, -1, 8))
                total += (u - matched).square().sum(-1).mean()
    torch.testing.assert_close(found, total / pairs, rtol=1e-4, atol=1e-5)
    assert objective.uniform_loss() == {"view": math.log(12)}
    trained = [p for group in objective.param_groups(0.1) for p in group["params"]]
    assert all(p is not objective.region_head.prototypes for p in trained)


def test_transport_changes_the_region_loss_only():
    near, spread = make(), make(match="sinkhorn")
    views = noise(near, 3)
    a, b = (objective(views, batch_of(3), START) for objective in (near, spread))
    assert a["view"].item() == b["view"].item()
    assert a["region"].item() != b["region"].item()


def test_the_region_loss_is_off_until_its_epoch():
    """No gradient, no moments, no decay, no centre; the view loss has the weight of both. Then all of it."""
    objective = make(region_from=5)
    objective.region_centre.mean.zero_()
    optimiser = torch.optim.AdamW(objective.param_groups(0.5), lr=1e-2)
    head = objective.region_head
    start = [p.detach().clone() for p in head.parameters()]
    assert objective.phases == 2
    loss = step(objective, optimiser, 1, Progress(49, 100, 10))
    assert objective.phase == 0
    assert objective.uniform_loss() == {"view": math.log(12)}
    assert all(torch.equal(p, q) for p, q in zip(start, head.parameters(), strict=True))
    assert not any(p in optimiser.state for p in head.parameters())
    assert not objective.region_centre.mean.any()
    terms = objective(noise(objective, 4), batch_of(4), START)
    assert terms["region"].item() == 0
    torch.testing.assert_close(objective.total(terms, START), terms["view"])
    assert math.isfinite(loss)
    step(objective, optimiser, 2, Progress(50, 100, 10))
    assert objective.phase == 1
    assert objective.uniform_loss().keys() == {"view", "region"}
    assert all(not torch.equal(p, q) for p, q in zip(start, head.parameters(), strict=True))
    assert objective.region_centre.mean.any()


def test_prototypes_of_both_heads_are_frozen_in_the_first_epoch():
    objective = make()
    optimiser = torch.optim.AdamW(objective.param_groups(0.0), lr=1e-2)
    both = [objective.head.prototypes, objective.region_head.prototypes]
    start = [p.detach().clone() for p in both]
    step(objective, optimiser, 0, Progress(9, 100, 10))
    assert all(torch.equal(p, q) for p, q in zip(both, start))
    step(objective, optimiser, 1, Progress(10, 100, 10))
    assert not any(torch.equal(p, q) for p, q in zip(both, start))
