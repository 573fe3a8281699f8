from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from vitling.errors import UserError
from vitling.evaluation.config import FewShotConfig
from vitling.evaluation.few_shot import draw_few, measure_few_shot, score_by_centroid, select_shots
from vitling.evaluation.metrics import top1


def draw_clusters(n: int = 90, classes: int = 3, dim: int = 8):
    torch.manual_seed(0)
    labels = torch.arange(n) % classes
    return torch.randn(classes, dim)[labels] * 2 + torch.randn(n, dim), labels


def test_draws_are_nested_and_cover_every_class():
    labels = np.array([0] * 12 + [2] * 11 + [5] * 30)
    ten, two = draw_few(labels, 10, seed=0, draw=1), draw_few(labels, 2, seed=0, draw=1)
    assert np.bincount(labels[ten]).tolist() == [10, 0, 10, 0, 0, 10]
    assert set(two) < set(ten)
    assert set(ten) != set(draw_few(labels, 10, seed=0, draw=2))
    assert set(ten) != set(draw_few(labels, 10, seed=1, draw=1))


def test_curves_rise_and_have_a_std():
    features, labels = draw_clusters()
    query_features, truth = draw_clusters(60)
    found = measure_few_shot(features, labels, query_features, truth, 3, top1, FewShotConfig((1, 10), draws=4))
    for way in ("centroid", "logistic"):
        one, ten = found[way][1], found[way][10]
        assert len(one["values"]) == 4
        assert one["mean"] == pytest.approx(np.mean(one["values"]))
        assert one["std"] == pytest.approx(np.std(one["values"], ddof=1))
        assert one["mean"] < ten["mean"] <= 1
    assert measure_few_shot(features, labels, query_features, truth, 3, top1, FewShotConfig((1, 10), draws=4)) == found
    single = measure_few_shot(features, labels, query_features, truth, 3, top1, FewShotConfig((1,), draws=1))
    assert single["centroid"][1]["std"] is None


def test_centroids_match_scikit_learn_on_unit_features():
    features, labels = draw_clusters()
    query_features, _ = draw_clusters(40)
    unit, queries = (torch.nn.functional.normalize(x, dim=1).numpy() for x in (features, query_features))
    ours = score_by_centroid(features, labels, query_features, 3)
    theirs = NearestCentroid().fit(unit, labels.numpy())
    lengths = np.linalg.norm(theirs.centroids_, axis=1)
    assert np.allclose(ours.numpy(), queries @ (theirs.centroids_ / lengths[:, None]).T, atol=1e-5)


def test_one_image_per_class_is_the_nearest_neighbour():
    features, labels = draw_clusters()
    rows = draw_few(labels.numpy(), 1, 0, 0)
    reference = KNeighborsClassifier(1, metric="cosine").fit(features[rows].numpy(), labels[rows].numpy())
    answers = score_by_centroid(features[rows], labels[rows] * 2, features, 6).argmax(dim=1)
    assert np.array_equal(answers.numpy(), 2 * reference.predict(features.numpy()))


def test_too_many_shots_are_left_out_or_refused():
    labels = torch.tensor([0] * 5 + [1] * 3)
    assert select_shots(labels, (1, 2, 5, 10)) == [1, 2]
    with pytest.raises(UserError, match="the smallest class has 3"):
        select_shots(labels, (5,))
    with pytest.raises(UserError, match="has 1 training image"):
        select_shots(labels[:6], (2,))
    with pytest.raises(UserError, match="several labels"):
        select_shots(torch.zeros(3, 2, dtype=torch.bool), (1,))
