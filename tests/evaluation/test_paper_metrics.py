"""Which metrics labels have; the metrics themselves are tested beside the others."""

from __future__ import annotations

import torch

from vitling.data.papers import ENTRIES
from vitling.evaluation.paper_metrics import METRICS, all_metrics


def test_all_that_such_labels_have():
    assert all_metrics(torch.rand(4, 3), torch.tensor([0, 1, 2, 0])).keys() == {"accuracy", "mean per class"}
    assert "ROC-AUC" in all_metrics(torch.rand(4, 2), torch.tensor([0, 1, 1, 0]))
    assert "ROC-AUC" not in all_metrics(torch.rand(2, 2), torch.tensor([0, 0]))
    several = torch.tensor([[True, False], [False, True]])
    assert all_metrics(torch.rand(2, 2), several).keys() == {"11-point mAP", "mAP"}


def test_every_data_set_has_a_metric():
    assert {entry.metric for entry in ENTRIES.values()} <= METRICS.keys()
