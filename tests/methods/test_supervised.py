from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.tiny import tiny_backbone
from vitling.methods.supervised.loss import Supervised
from vitling.objectives import Batch
from vitling.views import Group, Plan, Views

PLAN = Plan((Group(16),))
PIXELS = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def supervised(**settings) -> Supervised:
    torch.manual_seed(0)
    return Supervised(tiny_backbone(), PLAN, **{"classes": 3, **settings}).eval()


def test_mixed_smoothed_loss_equals_its_formula():
    objective = supervised(smoothing=0.1)
    labels = torch.tensor([0, 1, 2, 1, 0])
    ids, partner, lam = torch.tensor([4, 1, 2, 3]), torch.tensor([1, 2, 0, 3]), torch.tensor([0.7, 1.0, 0.2, 0.5])
    terms = objective([Views(PIXELS, 1, partner, lam)], Batch(ids, labels), None)
    logits = objective.logits(PIXELS)
    expected = 0.0
    for i in range(4):
        log_p = logits[i].log_softmax(0)
        a, b = labels[ids[i]], labels[partner[i]]
        hard = -lam[i] * log_p[a] - (1 - lam[i]) * log_p[b]
        expected += (0.9 * hard - 0.1 / 3 * log_p.sum()) / 4
    assert torch.allclose(terms["classification"], expected)
    assert torch.allclose(objective.targets(Views(PIXELS, 1, partner, lam), Batch(ids, labels)).sum(1), torch.ones(4))


@pytest.mark.parametrize("several", [False, True])
def test_uniform_predictions_cost_the_uniform_loss(several):
    """Whatever was mixed; smoothing costs nothing then."""
    objective = supervised(multi_label=several, smoothing=0.1)
    nn.init.zeros_(objective.head.weight)
    labels = torch.tensor([[True, False, True]] * 4) if several else torch.tensor([0, 1, 2, 1])
    view = Views(PIXELS, 1, torch.tensor([1, 0, 3, 2]), torch.tensor([0.7, 1.0, 0.2, 0.5]))
    terms = objective([view], Batch(torch.arange(4), labels), None)
    assert terms["classification"].item() == pytest.approx(objective.uniform_loss()["classification"])
    assert supervised(class_weights=torch.ones(3)).uniform_loss() == {}


def test_several_labels_use_the_logistic_loss():
    objective = supervised(multi_label=True, smoothing=0.0)
    labels = torch.tensor([[True, False, True], [False, False, False], [True, True, True], [False, True, False]])
    loss = objective([Views(PIXELS, 1)], Batch(torch.arange(4), labels), None)["classification"]
    p = objective.logits(PIXELS).sigmoid()
    assert torch.allclose(loss, -torch.where(labels, p, 1 - p).log().mean(), atol=1e-6)


def test_class_weights_scale_the_loss_of_their_class():
    labels, ids = torch.tensor([0, 0, 0, 1]), torch.arange(4)
    plain, weighted = supervised(smoothing=0.0), supervised(smoothing=0.0, class_weights=torch.tensor([0.5, 2.0, 1.0]))
    log_p = plain.logits(PIXELS).log_softmax(1)
    expected = -(0.5 * log_p[:3, 0].sum() + 2.0 * log_p[3, 1]) / 4
    assert torch.allclose(weighted([Views(PIXELS, 1)], Batch(ids, labels), None)["classification"], expected)


def best_logits(objective: Supervised, target: torch.Tensor) -> torch.Tensor:
    """Minimise the loss of one image with this target."""
    logits = torch.zeros(1, objective.classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=100)

    def closure():
        optimiser.zero_grad()
        loss = objective.loss(logits, target)
        loss.backward()
        return loss

    optimiser.step(closure)
    return logits.detach()[0]


@pytest.mark.parametrize("c", [0, 1, 2])
def test_weights_of_rare_classes_keep_the_best_prediction(c):
    """2000 to 80 to 20 images, smoothed: the best answer to an image of a class is that class."""
    objective = supervised(smoothing=0.1, class_weights=torch.tensor([0.35, 8.75, 35.0]))
    best = best_logits(objective, torch.eye(3)[[c]]).softmax(0)
    assert best.argmax() == c
    assert torch.allclose(best[c], torch.tensor(0.9 + 0.1 / 3), atol=1e-3)


@pytest.mark.parametrize("present", [0.0, 1.0])
def test_weights_of_rare_labels_keep_the_best_prediction(present):
    objective = supervised(multi_label=True, smoothing=0.1, class_weights=torch.tensor([49.0, 1.0, 0.01]))
    best = best_logits(objective, torch.full((1, 3), present)).sigmoid()
    assert torch.allclose(best, torch.full((3,), 0.05 + 0.9 * present), atol=1e-2)


class MeanSquare(nn.Module):
    def forward(self, features, batch, progress):
        return (features.grid**2).mean()


@pytest.mark.parametrize("weight", [0.5, lambda progress: progress / 2])
def test_auxiliary_terms_join_with_their_weight(weight):
    objective = supervised()
    objective.attach("square", MeanSquare(), weight)
    terms = objective([Views(PIXELS, 1)], Batch(torch.arange(4), torch.tensor([0, 1, 2, 0])), 1.0)
    assert list(terms) == ["classification", "square"]
    assert torch.allclose(terms["square"], (objective.backbone(PIXELS).grid ** 2).mean())
    assert torch.allclose(objective.total(terms, 1.0), terms["classification"] + 0.5 * terms["square"])


def test_an_auxiliary_of_weight_zero_leaves_the_gradients_alone():
    def gradients(attach: bool) -> list[torch.Tensor]:
        objective = supervised()
        if attach:
            objective.attach("square", MeanSquare(), 0.0)
        terms = objective([Views(PIXELS, 1)], Batch(torch.arange(4), torch.tensor([0, 1, 2, 0])), None)
        objective.total(terms, None).backward()
        return [p.grad for p in objective.parameters() if p.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


def test_weight_decay_spares_biases_norms_tokens_and_positions():
    objective = supervised()
    decayed, free = objective.param_groups(0.05)
    names = {id(p): name for name, p in objective.named_parameters()}
    free_names = {names[id(p)] for p in free["params"]}
    assert decayed["weight_decay"] == 0.05
    assert free["weight_decay"] == 0
    assert {"backbone.timm_model.pos_embed", "backbone.timm_model.cls_token", "head.bias"} <= free_names
    assert all("norm" in n or n.endswith(("bias", "pos_embed", "cls_token")) for n in free_names)
    assert len(decayed["params"]) + len(free["params"]) == len(names)


def test_it_is_capturable_unless_something_changes_with_the_steps():

    class Term(torch.nn.Module):
        capturable = True

    objective = supervised()
    assert objective.capturable
    objective.attach("term", Term(), 0.5)
    assert objective.capturable
    objective.attach("term", Term(), lambda progress: 0.5)
    assert not objective.capturable
    objective.attach("term", torch.nn.Identity(), 0.5)
    assert not objective.capturable
