"""The metrics of EsViT's Table 10, beside slow and literal ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vitling.errors import UserError
from vitling.evaluation.paper_metrics import all_metrics, eleven_point_map, roc_auc


def literal_eleven_points(scores, positive):
    """The VOC 2007 development kit, line by line; scores all differ."""
    order = np.argsort(-scores)
    hits = np.cumsum(positive[order])
    recall, precision = hits / positive.sum(), hits / np.arange(1, len(scores) + 1)
    return np.mean(
        [max([p for r, p in zip(recall, precision) if r >= t - 1e-9], default=0) for t in np.arange(0, 1.1, 0.1)]
    )


def test_eleven_points_as_in_the_development_kit():
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(60, 4)), random.random((60, 4)) < 0.3
    labels[:, 3] = False  # no positive image: left out
    wanted = np.mean([literal_eleven_points(scores[:, c], labels[:, c]) for c in range(3)])
    assert eleven_point_map(torch.tensor(scores), torch.tensor(labels)) == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(UserError):
        eleven_point_map(torch.tensor(scores), torch.zeros(60, 4, dtype=torch.bool))


def test_eleven_points_by_hand():
    """Positive at ranks 1 and 3: precision 1 up to recall 0.5, then 2/3."""
    scores = torch.tensor([[4.0], [3.0], [2.0], [1.0]])
    labels = torch.tensor([[True], [False], [True], [False]])
    assert eleven_point_map(scores, labels) == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)


@pytest.mark.parametrize("ties", [False, True])
def test_roc_auc_as_scikit_learn_has_it(ties):
    random = np.random.default_rng(1)
    scores = random.integers(0, 4, (80, 2)).astype(float) if ties else random.normal(size=(80, 2))
    labels = random.integers(0, 2, 80)
    wanted = roc_auc_score(labels, scores[:, 1] - scores[:, 0])
    assert roc_auc(torch.tensor(scores), torch.tensor(labels)) == pytest.approx(wanted, abs=1e-12)


def test_what_has_no_roc_curve():
    with pytest.raises(UserError, match="two classes"):
        roc_auc(torch.rand(4, 3), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(UserError, match="both classes"):
        roc_auc(torch.rand(4, 2), torch.tensor([1, 1, 1, 1]))


def test_all_that_such_labels_have():
    assert all_metrics(torch.rand(4, 3), torch.tensor([0, 1, 2, 0])).keys() == {"accuracy", "mean per class"}
    assert "ROC-AUC" in all_metrics(torch.rand(4, 2), torch.tensor([0, 1, 1, 0]))
    assert "ROC-AUC" not in all_metrics(torch.rand(2, 2), torch.tensor([0, 0]))
    several = torch.tensor([[True, False], [False, True]])
    assert all_metrics(torch.rand(2, 2), several).keys() == {"11-point mAP", "mAP"}
