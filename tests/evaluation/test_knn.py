"""k-NN compared with scikit-learn's, and edge cases: blocks, few images, one class, identical features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitling.errors import UserError
from vitling.evaluation.knn import TEMPERATURE, knn_scores, knn_votes
from vitling.evaluation.metrics import mean_average_precision, top1

CLASSES = 7
KS = (1, 5, 20)


@pytest.fixture(scope="module")
def data():
    """Bank, queries and their labels, from overlapping clusters whose neighbours disagree."""
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, 16)
    labels, query_labels = torch.randint(CLASSES, (300,)), torch.randint(CLASSES, (83,))
    return (
        centres[labels] + 2 * torch.randn(300, 16),
        labels,
        (centres[query_labels] + 2 * torch.randn(83, 16)) * 5,
        query_labels,
    )


def scikit_learn(bank, labels, queries, k: int, temperature: float) -> np.ndarray:
    reference = KNeighborsClassifier(
        k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / temperature), algorithm="brute"
    )
    reference.fit(bank.double().numpy(), labels.numpy())
    return reference.predict_proba(queries.double().numpy())


@pytest.mark.parametrize("temperature", [TEMPERATURE, 1.0])
def test_votes_match_scikit_learn(data, temperature):
    bank, labels, queries, query_labels = data
    votes = knn_votes(bank, labels, queries, KS, CLASSES, temperature)
    scores = knn_scores(bank, labels, queries, query_labels, KS, CLASSES, temperature)
    for k in KS:
        reference = scikit_learn(bank, labels, queries, k, temperature)
        assert np.abs(votes[k].numpy() - reference).max() < 1e-4
        assert scores[k] == top1(votes[k], query_labels)


@pytest.mark.parametrize("block", [13, 500, 10_000])
def test_block_size_does_not_matter(data, block):
    bank, labels, queries, query_labels = data
    for queries_or_none, truth in ((queries, query_labels), (None, labels)):
        whole = knn_votes(bank, labels, queries_or_none, KS, CLASSES)
        parts = knn_votes(bank, labels, queries_or_none, KS, CLASSES, block=block)
        assert all(torch.allclose(whole[k], parts[k], atol=1e-5) for k in KS)
        scores = knn_scores(bank, labels, queries_or_none, truth, KS, CLASSES, block=block)
        assert scores == {k: top1(whole[k], truth) for k in KS}


def test_several_k_in_one_pass_match_separate_passes(data):
    bank, labels, queries, _ = data
    together = knn_votes(bank, labels, queries, KS, CLASSES)
    for k in KS:
        assert torch.allclose(together[k], knn_votes(bank, labels, queries, [k], CLASSES)[k])


def test_leave_one_out_excludes_the_image(data):
    bank, labels, _, _ = data
    votes = knn_votes(bank, labels, None, [5], CLASSES)[5]
    for i in (0, 17, 299):
        others = torch.arange(len(bank)) != i
        alone = knn_votes(bank[others], labels[others], bank[i : i + 1], [5], CLASSES)[5]
        assert torch.allclose(votes[i], alone[0], atol=1e-5)


def test_multi_label(data):
    bank, _, queries, _ = data
    labels, query_labels = torch.rand(300, 4) < 0.3, torch.rand(83, 4) < 0.3
    votes = knn_votes(bank, labels, queries, [9], 4)[9]
    for c in range(4):
        reference = scikit_learn(bank, labels[:, c].long(), queries, 9, TEMPERATURE)[:, 1]
        assert np.abs(votes[:, c].numpy() - reference).max() < 1e-4
    assert knn_scores(bank, labels, queries, query_labels, [9], 4)[9] == mean_average_precision(votes, query_labels)


def test_one_class(data):
    bank, _, queries, _ = data
    ones = knn_votes(bank, torch.zeros(300, dtype=torch.int64), queries, [20], 1)[20]
    assert torch.allclose(ones, torch.ones(83, 1))


def test_two_images():
    bank, labels = torch.eye(2), torch.tensor([0, 1])
    assert knn_scores(bank, labels, bank, labels, [1], 2) == {1: 1.0}
    assert knn_scores(bank, labels, None, labels, [1], 2) == {1: 0.0}


@pytest.mark.parametrize("value", [0.0, 1e-30, 3.0, 1e30])
def test_identical_features_give_finite_votes(value):
    bank, labels = torch.full((40, 8), value), torch.arange(40) % 4
    votes = knn_votes(bank, labels, None, [1, 10], 4)
    assert all(v.isfinite().all() and torch.allclose(v.sum(dim=1), torch.ones(40)) for v in votes.values())


def test_more_classes_than_images():
    bank, labels = torch.eye(3), torch.tensor([5, 70_000, 9])
    assert knn_votes(bank, labels, bank, [2], 70_001)[2].argmax(dim=1).tolist() == [5, 70_000, 9]


def test_invalid_input_is_refused(data):
    bank, labels, queries, _ = data
    with pytest.raises(UserError, match="k = 301 is more than the 300"):
        knn_votes(bank, labels, queries, [1, 301], CLASSES)
    with pytest.raises(UserError, match="more than the 299"):
        knn_votes(bank, labels, None, [300], CLASSES)
    with pytest.raises(UserError, match="must be at least 1"):
        knn_votes(bank, labels, queries, [0], CLASSES)
    with pytest.raises(UserError, match="do not match"):
        knn_votes(bank, labels[:9], queries, [1], CLASSES)
    queries = queries.clone()
    queries[3, 3] = torch.nan
    with pytest.raises(UserError, match="not finite for 1 of 83 images"):
        knn_votes(bank, labels, queries, [1], CLASSES)
