"""Exact weighted k-nearest-neighbour classification by cosine, as DINO and EsViT do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation import metrics

TEMPERATURE = 0.07  # a neighbour votes with exp(cosine / T), as in DINO and EsViT
BLOCK = 1 << 25  # similarities in memory at once: 128 MB

Votes = dict[int, Tensor]  # k -> [N, C], each row sums to 1 (single labels)


def knn_votes(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    ks: Sequence[int],
    classes: int,
    temperature: float = TEMPERATURE,
    block: int = BLOCK,
) -> Votes:
    """Compute, for each k, the fraction of the votes of the k nearest bank images for each class, [N, C].

    `labels` are int [M], or bool [M, C] for several per image. Without `queries`, each bank image is classified by the
    others. The fractions are scores for `metrics`; use their logarithm as logits. Everything stays on the device of the
    features.
    """
    parts = list(_iterate_votes(bank, labels, queries, ks, classes, temperature, block))
    return {k: torch.cat([part[k] for part in parts]) for k in ks}


def knn_scores(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    query_labels: Tensor,
    ks: Sequence[int],
    classes: int,
    temperature: float = TEMPERATURE,
    block: int = BLOCK,
) -> dict[int, float]:
    """Compute, for each k, top-1 accuracy, or mean average precision for several labels per image."""
    if labels.ndim == 2:
        votes = knn_votes(bank, labels, queries, ks, classes, temperature, block)
        return {k: metrics.mean_average_precision(votes[k], query_labels) for k in ks}
    correct, start = dict.fromkeys(ks, 0), 0
    for part in _iterate_votes(bank, labels, queries, ks, classes, temperature, block):
        truth = query_labels[start : start + len(part[ks[0]])]
        correct = {k: correct[k] + int((part[k].argmax(dim=1) == truth).sum()) for k in ks}
        start += len(truth)
    return {k: correct[k] / start for k in ks}


@contextmanager
def exact_matmul() -> Iterator[None]:
    """Disable TF32, which training allows: its error of 1e-3 changes which images are nearest."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
@exact_matmul()
def find_nearest(
    bank: Tensor, queries: Tensor, k: int, first: int | None = None, block: int = BLOCK
) -> tuple[Tensor, Tensor]:
    """Find the similarities and rows [N, k] of the nearest bank images, best first; all features have length 1.

    `first`: the queries are the bank's own rows from this one on, and none is its own neighbour.
    """
    best = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=bank.device)
    step = max(1, block // max(1, len(queries)))
    for start in range(0, len(bank), step):
        similarity = queries @ bank[start : start + step].T
        if first is not None:
            similarity.diagonal(first - start).fill_(-torch.inf)
        near, at = similarity.topk(min(k, similarity.shape[1]), dim=1)
        best, rows = torch.cat([best, near], dim=1), torch.cat([rows, at + start], dim=1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        rows = rows.gather(1, order)
    return best, rows


@torch.no_grad()
def _iterate_votes(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    ks: Sequence[int],
    classes: int,
    temperature: float,
    block: int,
) -> Iterator[Votes]:
    """Yield votes in chunks whose similarities and votes fit into a block."""
    _check(bank, labels, queries, ks)
    bank = F.normalize(bank.float(), dim=1)
    unit_queries = bank if queries is None else F.normalize(queries.float(), dim=1)
    step = max(1, block // max(min(len(bank), 1 << 16), classes * len(ks)))
    for start in range(0, len(unit_queries), step):
        first = start if queries is None else None
        similarity, rows = find_nearest(bank, unit_queries[start : start + step], max(ks), first, block)
        # Relative to the nearest neighbour, so that no temperature over- or underflows all votes.
        weights = ((similarity - similarity[:, :1]) / temperature).exp()
        yield {k: _count_votes(weights[:, :k], rows[:, :k], labels, classes) for k in ks}


def _count_votes(weights: Tensor, rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    if labels.ndim == 2:
        votes = F.embedding_bag(rows, labels.to(weights), per_sample_weights=weights.contiguous(), mode="sum")
    else:
        votes = weights.new_zeros(len(rows), classes).scatter_add_(1, labels[rows], weights)
    return votes / weights.sum(dim=1, keepdim=True)


def _check(bank: Tensor, labels: Tensor, queries: Tensor | None, ks: Sequence[int]) -> None:
    if not ks or min(ks) < 1:
        raise UserError(f"k must be at least 1, not {', '.join(map(str, ks)) or 'empty'}.")
    available = len(bank) - (queries is None)
    if max(ks) > available:
        raise UserError(f"k = {max(ks)} is more than the {available} labelled images; use a smaller k.")
    check_features(bank, labels)
    if queries is not None:
        metrics.check_finite(queries, "The features are")


def check_features(features: Tensor, labels: Tensor) -> None:
    """Raise UserError unless there is a label for each row of features, and all are finite."""
    if len(features) != len(labels):
        raise UserError(f"{len(features)} features do not match {len(labels)} labels.")
    metrics.check_finite(features, "The features are")
