"""Confident learning against a literal version of the paper's equations and against cleanlab's answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitling.data.holdout import assign_folds
from vitling.errors import UserError
from vitling.evaluation.confident import check_labels
from vitling.evaluation.out_of_fold import predict_out_of_fold


def make_case(n: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, n)
    labels = np.where(rng.random(n) < 0.2, rng.integers(0, classes, n), true)
    p = rng.dirichlet(np.ones(classes), n) + 1.2 * np.eye(classes)[true] * rng.random((n, 1))
    return p / p.sum(axis=1, keepdims=True), labels


def literal_joint(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the estimated joint: Eq. 1 to 3 of Northcutt et al., times N."""
    n, classes = p.shape
    thresholds = []
    for j in range(classes):
        own = [p[i, j] for i in range(n) if labels[i] == j]
        thresholds.append(sum(own) / len(own) if own else np.inf)
    counts = np.zeros((classes, classes))
    for i in range(n):
        over = [j for j in range(classes) if p[i, j] >= thresholds[j]]
        if over:
            best = max(over, key=lambda j: p[i, j])
            counts[labels[i], best] += 1
    joint = np.zeros((classes, classes))
    for i in range(classes):
        for j in range(classes):
            total = counts[i].sum()
            share = counts[i, j] / total if total else float(i == j)
            joint[i, j] = share * (labels == i).sum()
    return joint


@pytest.mark.parametrize(("n", "classes", "seed"), [(60, 4, 0), (200, 7, 1), (30, 12, 2), (5, 2, 3)])
def test_equals_the_equations(n, classes, seed):
    p, labels = make_case(n, classes, seed)
    found = check_labels(p, labels)
    joint = literal_joint(p, labels)
    used = np.unique(labels)
    np.testing.assert_allclose(found.joint, joint[np.ix_(used, used)], atol=1e-12)
    assert joint.sum() == pytest.approx(found.joint.sum())
    wrong = joint.sum() - np.trace(joint)
    assert found.expected_wrong == pytest.approx(wrong)
    margins = [p[i, labels[i]] - max(p[i, j] for j in range(classes) if j != labels[i]) for i in range(n)]
    scores = [margin + 3 * p[i, labels[i]] for i, margin in enumerate(margins)]
    np.testing.assert_allclose(found.score, scores)
    likely = [i for i in sorted(range(n), key=lambda i: scores[i]) if margins[i] < 0]
    assert found.rank().tolist() == likely[: round(wrong)]


def test_equals_cleanlab():
    """Compare with cleanlab 2.9.0: compute_confident_joint, and find_label_issues by normalised margin."""
    p, labels = make_case(60, 4, 0)
    found = check_labels(p, labels)
    off_diagonal = np.flatnonzero((found.confident >= 0) & (found.confident != labels))
    own, others = p[np.arange(60), labels], np.where(np.arange(4) == labels[:, None], -1, p).max(axis=1)
    ranked = off_diagonal[np.argsort((own - others)[off_diagonal])]
    assert ranked.tolist() == [18, 1, 33, 36, 58, 39, 32, 28, 44, 25, 49]  # filter_by="confident_learning"
    counts = np.zeros((4, 4), int)
    sure = found.confident >= 0
    np.add.at(counts, (labels[sure], found.confident[sure]), 1)
    assert counts.tolist() == [[7, 0, 0, 1], [0, 8, 1, 0], [2, 3, 13, 1], [1, 2, 0, 7]]


def flip_digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pixels, labels of which 5 % are wrong, and which ones."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    rng = np.random.default_rng(seed)
    flipped = np.zeros(len(digits.target), bool)
    flipped[rng.permutation(len(flipped))[: len(flipped) // 20]] = True
    labels = np.where(flipped, (digits.target + rng.integers(1, 10, len(flipped))) % 10, digits.target)
    return digits.data, labels, flipped


@pytest.mark.parametrize("seed", [0, 1])
def test_flipped_digits_are_found(seed):
    pixels, labels, flipped = flip_digits(seed)
    folds = assign_folds(labels, None, len(labels), 10, seed)
    p = predict_out_of_fold(torch.from_numpy(pixels), torch.from_numpy(labels), 10, folds)
    found = check_labels(p, labels)
    recall, precision = found.is_suspect[flipped].mean(), flipped[found.is_suspect].mean()
    assert recall > 0.9
    assert precision > 0.8
    top = found.rank()[: flipped.sum()]
    assert flipped[top].mean() > 0.85
    assert 70 < found.expected_wrong < 130  # 89 are wrong


def test_no_image_influences_its_own_probabilities():
    rng = np.random.default_rng(0)
    features, labels = torch.from_numpy(rng.normal(size=(60, 5))), torch.arange(60) % 3
    folds = np.arange(60) % 4
    before = predict_out_of_fold(features, labels, 3, folds)
    changed = labels.clone()
    changed[1] = 2  # image 1 is in fold 1, C is chosen on fold 0
    after = predict_out_of_fold(features, changed, 3, folds)
    np.testing.assert_allclose(after[1], before[1], atol=0.05)


def test_images_in_no_fold_have_no_probabilities():
    features, labels = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4 + [2])
    folds = assign_folds(labels.numpy(), None, 9, 2, 0)
    p = predict_out_of_fold(features, labels, 3, folds)
    assert np.isnan(p[8]).all()
    assert not np.isnan(p[:8]).any()


def test_too_few_images_are_refused():
    with pytest.raises(UserError, match="Too few images"):
        predict_out_of_fold(torch.zeros(2, 3), torch.tensor([0, 1]), 2, np.array([-1, -1]))
