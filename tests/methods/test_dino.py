"""DINO and its parts against slow, literal versions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.methods.helpers import START, batch_of, noise, step
from tests.tiny import tiny_backbone
from vitling.methods.dino.loss import DINO, teacher_temperature_at
from vitling.methods.dino.settings import DINOConfig, dino_plan, local_size
from vitling.objectives.distillation import Centre, DistillationHead, view_loss
from vitling.objectives.progress import Progress
from vitling.views.plan import Group, Plan
from vitling.views.policies import make_plan

SMALL = DINOConfig(local_crops=3, prototypes=12, hidden=24, bottleneck=8)


def make(**settings) -> DINO:
    torch.manual_seed(0)
    config = replace(SMALL, **settings)
    return DINO(tiny_backbone(), dino_plan(config, 16), config)


# --- the loss -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def literal(objective: DINO, views, centre, teacher_temperature: float) -> float:
    """Compute DINO's Eq. 3: over the teacher's global views, over all other views of the student, image by image."""
    crops = [part for view in views for part in view.pixels.split(len(views[0].pixels))]
    images, total, pairs = len(crops[0]), 0.0, 0
    for t, wide in enumerate(crops[: objective.config.global_crops]):
        for s, other in enumerate(crops):
            if s == t:
                continue
            pairs += 1
            for i in range(images):
                teacher = objective.teacher.head(objective.teacher.backbone(wide[i : i + 1]).pooled)[0]
                student = objective.head(objective.backbone(other[i : i + 1]).pooled)[0]
                p = ((teacher - centre) / teacher_temperature).exp()
                q = (student / objective.config.temperature).exp()
                total -= float((p / p.sum() * (q / q.sum()).log()).sum()) / images
    return total / pairs


@pytest.mark.parametrize(("global_crops", "local_crops"), [(2, 3), (2, 1), (2, 0), (1, 2), (3, 1)])
def test_the_loss_matches_a_literal_version(global_crops, local_crops):
    objective = make(global_crops=global_crops, local_crops=local_crops)
    assert len(objective.plan.groups) == min(global_crops, 2) + bool(local_crops)
    objective.centre.mean.normal_(std=0.1)
    torch.nn.init.normal_(objective.teacher.head.prototypes)
    centre = objective.centre.mean.clone()
    objective.teacher_temperature.fill_(0.05)
    views = noise(objective, 3)
    loss = objective(views, batch_of(3), START)["view"]
    assert loss.item() == pytest.approx(literal(objective, views, centre, 0.05), rel=1e-4)


def test_uniform_outputs_cost_ln_k():
    student, targets = torch.zeros(5, 4, 64), torch.full((2, 4, 64), 1 / 64)
    assert view_loss(student, targets, 0.1).item() == pytest.approx(math.log(64), rel=1e-6)
    sharp = F.one_hot(torch.arange(8).view(2, 4), 64).float()
    assert view_loss(student, sharp, 0.1).item() == pytest.approx(math.log(64), rel=1e-6)
    assert make().uniform_loss() == {"view": pytest.approx(math.log(12))}


def test_a_view_is_not_compared_with_itself():
    """Each view of the student says exactly what the teacher says of the other one."""
    targets = F.one_hot(torch.arange(8).view(2, 4), 64).float()
    assert view_loss(100 * targets.flip(0), targets, 0.1).item() == pytest.approx(0, abs=1e-6)
    assert view_loss(100 * targets, targets, 0.1).item() > 100


def test_the_head_takes_tokens_too():
    """Regions: [B, T, D] is as B T vectors."""
    head, tokens = DistillationHead(6, 12, 4, 9), torch.randn(2, 5, 6)
    torch.testing.assert_close(head(tokens).flatten(0, 1), head(tokens.flatten(0, 1)))


# --- head, centre, temperature --------------------------------------------------------------------------------------


def test_logits_are_cosines():
    head = DistillationHead(32, 24, 8, 12)
    with torch.no_grad():
        head.prototypes.mul_(7)
        vectors = torch.randn(5, 32)
        z, w = head.mlp(vectors), head.prototypes
        expected = torch.stack([torch.stack([F.cosine_similarity(a, b, dim=0) for b in w]) for a in z])
    torch.testing.assert_close(head(vectors), expected)
    sizes = sum(p.numel() for p in DistillationHead(768, 2048, 256, 65536).parameters())
    assert sizes == 23_138_560 - 65536  # as released, less the gains


def test_prototypes_are_frozen_in_the_first_epoch():
    objective = make()
    optimiser = torch.optim.AdamW(objective.param_groups(0.0), lr=1e-2)
    start = objective.head.prototypes.detach().clone()
    for s in (0, 9):
        step(objective, optimiser, s, Progress(s, 100, 10))
        assert torch.equal(objective.head.prototypes, start)
        assert objective.head.mlp[0].weight.grad.abs().sum() > 0
    step(objective, optimiser, 10, Progress(10, 100, 10))
    assert not torch.equal(objective.head.prototypes, start)


def test_weight_decay_keeps_the_direction_of_frozen_prototypes():
    objective = make()
    optimiser = torch.optim.AdamW(objective.param_groups(0.5), lr=1e-1)
    start = F.normalize(objective.head.prototypes.detach(), dim=1)
    step(objective, optimiser, 0)
    torch.testing.assert_close(F.normalize(objective.head.prototypes.detach(), dim=1), start)


def test_the_centre_moves_once_a_step_by_the_mean_of_all_passes():
    centre, rows = Centre(6, 0.9), torch.randn(2, 10, 6)
    before = centre.mean.normal_().clone()
    for start in (0, 0):  # the first try ran out of memory
        centre.begin()
        centre.add(rows[start, :7])
    centre.add(rows[0, 7:].bfloat16().float())
    centre.add(rows[1].view(2, 5, 6))
    assert torch.equal(centre.mean, before)
    centre.move()
    expected = 0.9 * before + 0.1 * rows.flatten(0, 1).mean(0)
    torch.testing.assert_close(centre.mean, expected, atol=1e-3, rtol=0)


def test_a_step_moves_the_centre_after_its_loss():
    objective = make()
    with torch.no_grad():
        views = noise(objective, 4, 1)
        pixels = torch.cat([view.pixels for view in views[:2]])
        teacher = objective.teacher.head(objective.teacher.features(pixels).pooled)
    step(objective, torch.optim.SGD(objective.param_groups(0.0), lr=0.1), 1)
    torch.testing.assert_close(objective.centre.mean, 0.1 * teacher.mean(0))


def test_without_centring_the_centre_stays_zero():
    objective = make(centre=1.0)
    step(objective, torch.optim.SGD(objective.param_groups(0.0), lr=0.1), 1)
    assert not objective.centre.mean.any()


def test_health_reveals_constant_targets():
    centre = Centre(64, 1.0)
    assert centre.health() == 1

    def answer(logits: torch.Tensor) -> None:
        """Take a step of two passes."""
        centre.begin()
        for some in logits.repeat(2, 1).chunk(2):
            centre.add(some)
            centre.note(centre.targets(some, 0.01))
        centre.move()

    for logits, health in ((torch.zeros(4, 64), 1.0), (F.one_hot(torch.zeros(4).long(), 64).float(), 0.0)):
        for _ in range(100):
            answer(logits)
        assert centre.health() == pytest.approx(health, abs=1e-3)
    for i in range(100):  # one image at a time, eight answers in turn
        answer(F.one_hot(torch.tensor([i % 8]), 64).float())
    assert centre.health() > 0.45
    assert make().health().keys() == {"answers"}


def test_recent_targets_are_saved_but_older_checkpoints_have_none():
    objective, other = make(), make()
    step(objective, torch.optim.SGD(objective.param_groups(0.0), lr=0.1), 1)
    state = objective.state_dict()
    assert state["centre.answered"].sum() > 0
    other.load_state_dict(state)
    assert other.health() == objective.health()
    other.load_state_dict({name: value for name, value in state.items() if name != "centre.answered"})


def test_the_teacher_warms_up():
    at = [teacher_temperature_at(SMALL, Progress(step, 100, 10)) for step in (0, 5, 10, 50, 100)]
    assert at == pytest.approx([0.04, 0.055, 0.07, 0.07, 0.07])
    assert teacher_temperature_at(replace(SMALL, teacher_warmup=0.0), START) == 0.07
    objective = make()
    objective.before_step(Progress(5, 100, 10))
    assert objective.teacher_temperature.item() == pytest.approx(0.055)


@pytest.mark.parametrize(("epochs", "warmup"), [(300, 30), (10, 1), (20, 2), (50, 5), (4, 0)])
def test_the_teachers_temperature_per_epoch_is_the_released_list(epochs, warmup):
    """The release concatenates `warmup` values from start to end, both included, with the end for the other epochs."""
    config, steps = replace(SMALL, teacher_warmup_per="epoch"), 3
    listed = [*np.linspace(0.04, 0.07, warmup), *[0.07] * (epochs - warmup)]
    found = [teacher_temperature_at(config, Progress(step, steps * epochs, epochs)) for step in range(steps * epochs)]
    assert found == pytest.approx([value for value in listed for _ in range(steps)])


# --- crops ----------------------------------------------------------------------------------------------------------


def test_crops_of_the_recipe():
    plan = dino_plan(DINOConfig(), 112)
    assert [(g.size, g.count) for g in plan.groups] == [(112, 1), (112, 1), (48, 8)]
    assert [local_size(size) for size in (224, 112, 64, 32, 16, 8)] == [96, 48, 32, 12, 8, 4]
    assert dino_plan(DINOConfig(local_size=112, local_crops=4), 112).groups[2].size == 112


def test_the_teacher_sees_global_views_only():
    objective, shapes = make(), []
    for network in objective.networks():
        network.register_forward_pre_hook(lambda module, inputs: shapes.append((module, *inputs[0].shape[::3])))
    objective(noise(objective, 4), batch_of(4), START)
    assert shapes == [(objective.teacher.backbone, 8, 16), (objective.backbone, 8, 16), (objective.backbone, 12, 8)]


def test_a_plan_that_does_not_begin_with_the_global_views_is_refused():
    """One group of two will do; one of six is no two."""
    assert DINO(tiny_backbone(), make_plan("simclr", 16), SMALL).global_groups == 1
    with pytest.raises(ValueError, match="2 global views"):
        DINO(tiny_backbone(), Plan((Group(16, 6),)), SMALL)
    with pytest.raises(ValueError, match="of one size"):
        DINO(tiny_backbone(), Plan((Group(16), Group(8))), SMALL)
