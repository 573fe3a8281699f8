"""The linear probe compared with torch's SGD, and its choice of a learning rate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.conftest import make_folder
from tests.tiny import tiny_backbone
from vitling import data
from vitling.data.store import build_store
from vitling.errors import UserError
from vitling.evaluation.config import LinearConfig
from vitling.evaluation.linear_probe import (
    AugmentedFeatures,
    CachedFeatures,
    _draw_weights,
    _iterate_batches,
    fit_probe,
    train_linear,
)
from vitling.evaluation.metrics import mean_average_precision, top1
from vitling.views.plan import Group, Plan, Policy

LRS = (0.003, 0.1, 1.0)


def draw_clusters(n: int = 120, dim: int = 10, classes: int = 4):
    torch.manual_seed(0)
    labels = torch.arange(n) % classes
    return torch.randn(classes, dim)[labels] + torch.randn(n, dim), labels


def train_with_torch(features, labels, lr: float, epochs: int, batch: int, loss):
    """Train one probe as the released code does."""
    head = nn.Linear(features.shape[1], labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1)
    start = _draw_weights(head.in_features, head.out_features, seed=0)
    head.weight.data, head.bias.data = start[:-1].T.clone(), start[-1].clone()
    optimiser = torch.optim.SGD(head.parameters(), lr * batch / 256, momentum=0.9, weight_decay=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs, eta_min=0)
    for epoch in range(epochs):
        for rows in _iterate_batches(len(features), batch, 0, epoch):
            optimiser.zero_grad()
            loss(head(features[rows]), labels[rows]).backward()
            optimiser.step()
        schedule.step()
    return head


@pytest.mark.parametrize("several", [False, True])
def test_learning_rates_train_independently(several):
    features, labels = draw_clusters()
    if several:
        labels = nn.functional.one_hot(labels, 4).bool() | (torch.rand(120, 4) < 0.2)
    loss = (lambda x, y: nn.functional.binary_cross_entropy_with_logits(x, y.float())) if several else None
    together = train_linear(CachedFeatures(features, labels), 10, 4, LinearConfig(lr=LRS, epochs=5, batch=50))
    for i, rate in enumerate(LRS):
        head = train_with_torch(features, labels, rate, 5, 50, loss or nn.functional.cross_entropy)
        assert torch.allclose(together.weight[i], head.weight.T, atol=1e-4)
        assert torch.allclose(together.logits(features)[i], head(features), atol=1e-4)


def test_initial_weights_are_small_and_biases_zero():
    start = _draw_weights(400, 50, seed=3)
    assert start[:-1].std() == pytest.approx(0.01, rel=0.05)
    assert not start[-1].any()
    assert not torch.equal(start, _draw_weights(400, 50, seed=4))


def test_best_learning_rate_on_validation_is_trained_on_both():
    features, labels = draw_clusters(200)
    train, held = CachedFeatures(features[:120], labels[:120]), (features[120:], labels[120:])
    both, done = CachedFeatures(features, labels), []
    config = LinearConfig(lr=(1e-6, *LRS), epochs=10, batch=50)
    found = fit_probe(train, held, both, 4, top1, config, on_progress=done.append)
    assert found.scores[found.lr] == found.score == max(found.scores.values())
    assert found.lr in LRS
    assert done == list(range(1, 21))
    alone = train_linear(both, 10, 4, replace(config, lr=(found.lr,)))
    assert torch.equal(alone.weight[0], found.classifier.weight[0])
    again = fit_probe(train, held, both, 4, top1, config)
    assert torch.equal(again.classifier.weight, found.classifier.weight)


def test_diverging_learning_rate_is_not_chosen():
    features, labels = draw_clusters()
    wild = features * 1e18
    source = CachedFeatures(wild, labels)
    found = fit_probe(source, (wild, labels), source, 4, top1, LinearConfig(lr=(1e-39, 1e30), epochs=20, batch=50))
    assert found.lr == 1e-39
    assert found.scores[1e30] is None
    with pytest.raises(UserError, match="diverged at every learning rate"):
        fit_probe(source, (wild, labels), source, 4, top1, LinearConfig(lr=(1e30,), epochs=20, batch=50))


def test_multi_label():
    features, labels = draw_clusters()
    several = nn.functional.one_hot(labels, 4).bool()
    source = CachedFeatures(features, several)
    found = fit_probe(
        source,
        (features, several),
        source,
        4,
        mean_average_precision,
        LinearConfig(lr=(0.1, 30.0), epochs=20, batch=32),
    )
    assert found.score > 0.8


def test_augmented_features_of_two_stores(tmp_path):
    """Without random views, the features of a row do not depend on batch or epoch, in either store."""
    folder = make_folder(tmp_path / "images", each=6)
    splits = data.open(folder, val="0.34")
    stores = [build_store(part, 20) for part in (splits.train, splits.val)]
    labels = torch.cat([store.labels for store in stores])
    backbone = tiny_backbone()
    still = Plan((Group(16, policy=Policy(centre=0.875, steps=())),))
    source = AugmentedFeatures(backbone, stores, labels, still, 2, seed=0)
    order = next(_iterate_batches(len(labels), len(labels), 0, 0))
    features = source.rows(order, 0)
    alone = torch.cat([source.rows(order[i : i + 1], 5) for i in range(len(order))])
    assert torch.allclose(features, alone, atol=1e-5)
    moving = AugmentedFeatures(backbone, stores, labels, Plan((Group(16),)), 2, seed=0)
    assert not torch.allclose(moving.rows(order, 0), moving.rows(order, 1), atol=1e-2)
    trained = train_linear(moving, 64, 3, LinearConfig(lr=(0.1,), epochs=3, batch=8))
    assert trained.weight.isfinite().all()
    assert math.isfinite(float(trained.bias.sum()))
