"""The cascade's three stages against a literal version."""

from __future__ import annotations

import math

import pytest
import torch

from vitling.dense.cascade import OVERLAPS, REGRESSION_WEIGHTS, CascadeHeads

SIDES = [(200, 300)]


def decode(box: list[float], deltas: list[float], weights: tuple[float, ...]) -> list[float]:
    """Move one box by its deltas and clip it."""
    width, height = box[2] - box[0], box[3] - box[1]
    dx, dy, dw, dh = (delta / weight for delta, weight in zip(deltas, weights))
    x, y = box[0] + width / 2 + dx * width, box[1] + height / 2 + dy * height
    width, height = width * math.exp(dw), height * math.exp(dh)
    corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return [min(max(value, 0.0), (300.0, 200.0)[k % 2]) for k, value in enumerate(corners)]


def script(heads: CascadeHeads, monkeypatch, seed: int = 0) -> tuple[list, list]:
    """Replace the networks by random outputs; return what each stage gave and the boxes that it saw."""
    generator, given, seen = torch.Generator().manual_seed(seed), [], []

    def run_stage(stage, features, boxes, sides):
        count = sum(len(some) for some in boxes)
        scores = torch.randn(count, 3, generator=generator).requires_grad_()
        regression = torch.randn(count, 4, generator=generator).requires_grad_()
        given.append((scores, regression))
        seen.append([some.clone() for some in boxes])
        return scores, regression

    monkeypatch.setattr(heads, "run_stage", run_stage)
    return given, seen


def test_boxes_are_refined_and_scores_averaged(monkeypatch):
    heads = CascadeHeads(8, classes=2, masks=False).eval()
    heads.score_thresh, heads.nms_thresh = 0.0, 1.1
    given, seen = script(heads, monkeypatch)
    proposals = torch.tensor([[20.0, 30.0, 120.0, 90.0], [100.0, 50.0, 280.0, 190.0], [10.0, 10.0, 60.0, 150.0]])
    with torch.no_grad():
        (boxes,), (scores,), (labels,) = heads.predict_boxes({}, [proposals], SIDES)
    expected = []
    for row, box in enumerate(proposals.tolist()):
        for stage in range(3):
            assert seen[stage][0][row].tolist() == pytest.approx(box, abs=1e-3)
            box = decode(box, given[stage][1][row].tolist(), REGRESSION_WEIGHTS[stage])
        average = sum(given[stage][0][row].detach().softmax(0) for stage in range(3)) / 3
        expected += [(float(average[label]), label, box) for label in (1, 2)]
    for (score, label, box), *ours in zip(sorted(expected, reverse=True), scores, labels, boxes):
        assert float(ours[0]) == pytest.approx(score, abs=1e-5)
        assert int(ours[1]) == label
        assert ours[2].tolist() == pytest.approx(box, abs=1e-2)


def test_later_stages_ask_for_more_overlap(monkeypatch):
    """Each stage labels the boxes it sees, refined ones and true ones, by its own threshold."""
    heads = CascadeHeads(8, classes=2, masks=False)
    given, seen = script(heads, monkeypatch)
    labelled: list[torch.Tensor] = []
    select = heads.select_training_samples

    def record(proposals, targets):
        chosen = select(proposals, targets)
        labelled.append(chosen[2][0])
        return chosen

    monkeypatch.setattr(heads, "select_training_samples", record)
    truth = torch.tensor([[40.0, 40.0, 140.0, 140.0]])
    shift = torch.arange(0.0, 60.0, 4.0)[:, None]
    proposals = truth + torch.cat([shift, torch.zeros_like(shift)] * 2, dim=1)
    targets = [{"boxes": truth, "labels": torch.tensor([2])}]
    losses = heads.compute_losses({}, [proposals], SIDES, targets)
    for stage, overlap in enumerate(OVERLAPS):
        for box, label in zip(seen[stage][0].tolist(), labelled[stage].tolist()):
            across = max(0.0, min(box[2], 140) - max(box[0], 40)) * max(0.0, min(box[3], 140) - max(box[1], 40))
            union = (box[2] - box[0]) * (box[3] - box[1]) + 100 * 100 - across
            assert label == (2 if across / union >= overlap else 0)
    weighted = [
        weight * torch.nn.functional.cross_entropy(scores, label)
        for weight, (scores, _), label in zip((1.0, 0.5, 0.25), given, labelled)
    ]
    assert torch.isclose(losses["class"], torch.stack(weighted).sum())
    losses["box"].backward()
    assert all(regression.grad is not None for _, regression in given)
