from __future__ import annotations

import json

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from vitling.errors import UserError
from vitling.evaluation import metrics


@pytest.fixture
def single():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(6, (200,), generator=generator)
    labels[labels == 4] = 3  # a class without images
    logits = torch.randn(200, 6, generator=generator)
    logits[torch.arange(200), labels] += 1.5
    return logits, labels


@pytest.fixture
def multi():
    generator = torch.Generator().manual_seed(1)
    labels = torch.rand(150, 5, generator=generator) < 0.3
    labels[:, 2] = False
    logits = torch.randn(150, 5, generator=generator) + 2 * labels
    return (logits * 4).round() / 4, labels  # ties


NAMES = ["a", "b", "c", "d", "e", "f"]


def test_single_label_metrics_match_scikit_learn(single):
    logits, labels = single
    answers, kinds = logits.argmax(1), list(range(6))
    assert metrics.top1(logits, labels) == pytest.approx(sk.accuracy_score(labels, answers))
    assert metrics.topk(logits, labels, 3) == pytest.approx(
        sk.top_k_accuracy_score(labels, logits.numpy(), k=3, labels=kinds)
    )
    assert np.array_equal(metrics.confusion(logits, labels), sk.confusion_matrix(labels, answers, labels=kinds))
    probabilities = logits.double().softmax(1).numpy()
    assert metrics.log_loss(logits, labels) == pytest.approx(sk.log_loss(labels, probabilities, labels=kinds))
    present = sorted(set(labels.tolist()))
    recall = sk.recall_score(labels, answers, labels=present, average="macro")
    assert metrics.mean_per_class(logits, labels) == pytest.approx(recall)


def test_per_class_table(single):
    logits, labels = single
    rows = metrics.per_class(logits, labels, NAMES)
    precision, recall, f1, n = sk.precision_recall_fscore_support(
        labels, logits.argmax(1), labels=list(range(6)), zero_division=0
    )
    for i, row in enumerate(rows):
        assert row["n"] == n[i]
        assert row["precision"] == pytest.approx(precision[i])
        assert row["f1"] == pytest.approx(f1[i])
        assert row["recall"] == (pytest.approx(recall[i]) if n[i] else None)


def test_calibration_error_matches_its_definition(single):
    logits, labels = single
    confidence, answer = logits.double().softmax(1).max(1)
    expected = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            gap = (answer[inside] == labels[inside]).double().mean() - confidence[inside].mean()
            expected += float(gap.abs() * inside.sum() / 200)
    assert metrics.calibration_error(logits, labels) == pytest.approx(expected)


def test_mean_average_precision_matches_scikit_learn(multi):
    logits, labels = multi
    expected = [sk.average_precision_score(labels[:, c], logits[:, c]) for c in (0, 1, 3, 4)]
    assert metrics.mean_average_precision(logits, labels) == pytest.approx(np.mean(expected))
    assert metrics.average_precisions(logits, labels)[2].isnan()
    probabilities = logits.double().sigmoid().numpy()
    expected_loss = np.mean([sk.log_loss(labels[:, c], probabilities[:, c], labels=[0, 1]) for c in range(5)])
    assert metrics.log_loss(logits, labels) == pytest.approx(expected_loss)


def literal_eleven_points(scores, positive) -> float:
    """Compute VOC 2007's definition over all thresholds."""
    points = []
    for threshold in sorted(set(scores.tolist())):
        answered = scores >= threshold
        hits = int((answered & positive).sum())
        points.append((10 * hits, hits / int(answered.sum())))
    total = int(positive.sum())
    return sum(max(p for r, p in points if r >= k * total) for k in range(11)) / 11


def test_eleven_point_precision_matches_its_definition(multi):
    logits, labels = multi
    found = metrics.eleven_point_precisions(logits, labels)
    expected = {c: literal_eleven_points(logits[:, c], labels[:, c]) for c in (0, 1, 3, 4)}
    assert found[2].isnan()
    assert {c: float(found[c]) for c in expected} == pytest.approx(expected)
    assert metrics.eleven_point_map(logits, labels) == pytest.approx(np.mean(list(expected.values())))
    ten = torch.arange(20.0).flip(0)  # ten positives, every second one: each recall is a tenth
    positive = torch.arange(20) % 2 == 0
    value = float(metrics.eleven_point_precisions(ten[:, None], positive[:, None]))
    assert value == pytest.approx(literal_eleven_points(ten, positive))
    perfect = metrics.eleven_point_map(positive[:, None].double(), positive[:, None])
    assert perfect == 1


def test_roc_auc_matches_scikit_learn_with_ties_and_empty_classes(single, multi):
    logits, labels = multi
    expected = [sk.roc_auc_score(labels[:, c], logits[:, c]) for c in (0, 1, 3, 4)]
    assert metrics.roc_auc(logits, labels) == pytest.approx(np.mean(expected))
    assert metrics.roc_aucs(logits, labels)[2].isnan()
    logits, labels = single
    probabilities = logits.double().softmax(1)
    expected = [sk.roc_auc_score(labels == c, probabilities[:, c]) for c in (0, 1, 2, 3, 5)]
    assert metrics.roc_auc(logits, labels) == pytest.approx(np.mean(expected))
    present = [0, 1, 2, 3, 5]  # scikit-learn's mean needs images of every class, and rows that sum to 1
    kept = logits[:, present].double()
    renamed = torch.tensor([present.index(c) for c in labels.tolist()])
    theirs = sk.roc_auc_score(renamed, kept.softmax(1), multi_class="ovr", average="macro")
    assert metrics.roc_auc(kept, renamed) == pytest.approx(theirs)


def test_roc_auc_of_two_classes():
    logits = torch.tensor([[0.0, 1], [0, 1], [0, 3], [0, -2], [0, 0.5]])
    labels = torch.tensor([0, 1, 1, 0, 1])
    assert metrics.roc_auc(logits, labels) == pytest.approx(sk.roc_auc_score(labels, logits[:, 1]))
    assert metrics.roc_auc(torch.zeros(5, 2), labels) == 0.5
    with pytest.raises(UserError, match="All images are of one class"):
        metrics.roc_auc(logits, labels * 0)


def test_top5_matches_scikit_learn(single):
    logits, labels = single
    theirs = sk.top_k_accuracy_score(labels, logits.numpy(), k=5, labels=range(6))
    assert metrics.topk(logits, labels, 5) == pytest.approx(theirs)


def test_metric_must_suit_the_labels():
    assert (metrics.resolve_metric("auto", False), metrics.resolve_metric("auto", True)) == ("top1", "map")
    assert metrics.resolve_metric("roc-auc", True) == "roc-auc"
    with pytest.raises(UserError, match="--metric map does not work with one class"):
        metrics.resolve_metric("map", False)
    with pytest.raises(UserError, match="map-11-point"):
        metrics.resolve_metric("top1", True)


def test_summaries_are_json_and_list_empty_classes(single, multi):
    summary = metrics.summarise(*single, NAMES, temperature=2.0)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["left_out"] == ["e"]
    assert summary["top5"] <= 1
    assert summary["log_loss"] == pytest.approx(metrics.log_loss(single[0] / 2, single[1]))
    summary = metrics.summarise(*multi, NAMES[:5])
    assert json.loads(json.dumps(summary)) == summary
    assert summary["left_out"] == ["c"]
    assert summary["per_class"][2]["average_precision"] is None
    expected = sk.f1_score(multi[1][:, 0], multi[0][:, 0] > 0)
    assert summary["per_class"][0]["f1"] == pytest.approx(expected)


def test_edge_cases():
    one = torch.tensor([[2.0, 1.0], [0.5, 0.1]])
    zeros = torch.zeros(2, dtype=torch.long)
    assert metrics.topk(one, zeros, 5) == 1  # k above the number of classes
    assert metrics.mean_per_class(one, zeros) == 1  # one class present
    assert metrics.top1(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)) == 1


@pytest.mark.parametrize(
    ("logits", "labels", "match"),
    [
        (torch.tensor([[1.0, float("nan")]]), torch.tensor([0]), "not finite for 1 of 1"),
        (torch.ones(2, 2), torch.tensor([0, 2]), "0 to 2"),
        (torch.ones(2, 2), torch.tensor([0]), "do not match"),
        (torch.ones(0, 2), torch.ones(0, dtype=torch.long), "do not match"),
        (torch.ones(2, 2), torch.ones(2, 3, dtype=torch.bool), "must be bool"),
    ],
)
def test_wrong_input_is_named(logits, labels, match):
    with pytest.raises(UserError, match=match):
        metrics.log_loss(logits, labels)
    with pytest.raises(UserError, match="No image has a label"):
        metrics.mean_average_precision(torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool))


def test_confident_predictions_keep_their_order():
    """A softmax would round to 1 for all of them."""
    torch.manual_seed(0)
    margin, labels = 40 * torch.randn(300), (torch.randn(300) > 0).long()
    margin = margin + 20 * labels
    two = torch.stack([torch.zeros(300), margin], dim=1)
    assert metrics.roc_auc(two, labels) == pytest.approx(sk.roc_auc_score(labels, margin), abs=1e-9)
    three = torch.randn(300, 3, dtype=torch.float64)
    odds = [three[:, c] - three[:, [i for i in range(3) if i != c]].logsumexp(dim=1) for c in range(3)]
    kinds = torch.arange(300) % 3
    expected = [sk.roc_auc_score(kinds == c, 50 * odds[c]) for c in range(3)]
    assert metrics.roc_auc(three, kinds) == pytest.approx(sum(expected) / 3, abs=1e-9)


def test_first_of_equal_logits_is_predicted_everywhere():
    logits, labels = torch.zeros(50, 10), torch.arange(50) % 10 // 9  # 45 of class 0
    assert metrics.top1(logits, labels) == 0.9
    assert metrics.confusion(logits, labels).diagonal().sum() == 45


@pytest.mark.parametrize("seed", range(3))
def test_counts_by_class_are_those_of_the_confusion_matrix(seed):
    generator = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(50, 7, generator=generator), torch.randint(0, 6, (50,), generator=generator)
    matrix = metrics.confusion(logits, labels)
    hits, n, predictions = metrics._count_by_class(logits, labels)
    assert hits.tolist() == matrix.diagonal().tolist()
    assert n.tolist() == matrix.sum(dim=1).tolist()
    assert predictions.tolist() == matrix.sum(dim=0).tolist()


def test_very_many_classes_take_no_square_of_memory():
    """A dense confusion matrix of these would take 29 GB."""
    classes = 60_000
    logits, labels = torch.zeros(2, classes), torch.tensor([0, classes - 1])
    found = metrics.summarise(logits, labels, [str(c) for c in range(classes)])
    assert "confusion" not in found
    assert found["mean_per_class"] == found["top1"] == 0.5
    few = metrics.summarise(logits[:1, :3], labels[:1], ["a", "b", "c"])
    assert few["confusion"] == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
