"""Exact weighted k-nearest-neighbour classification by cosine, as DINO and EsViT do it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from vitling.errors import UserError
from vitling.evaluation import metrics

TEMPERATURE = 0.07  # DINO's and EsViT's: a neighbour votes with exp(cosine / T)
BLOCK = 1 << 25  # similarities held at once: 128 MB

Votes = dict[int, Tensor]  # k -> [N, C], each row sums to 1 (single labels)


def knn_votes(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    ks: Sequence[int],
    classes: int,
    temperature: float | None = TEMPERATURE,
    block: int = BLOCK,
) -> Votes:
    """For each k, the share of the votes of its k nearest images of the bank that each class gets, [N, C].

    `labels` are int [M] or, for several an image, bool [M, C]. Without `queries` the bank is asked about itself, each
    image without itself. Without a temperature all k votes count the same. Shares are scores for `metrics`; where it
    wants logits, their logarithm. Everything stays on the device of the features.
    """
    parts = list(_votes_by_part(bank, labels, queries, ks, classes, temperature, block))
    return {k: torch.cat([part[k] for part in parts]) for k in ks}


def knn_scores(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    query_labels: Tensor,
    ks: Sequence[int],
    classes: int,
    temperature: float | None = TEMPERATURE,
    block: int = BLOCK,
) -> dict[int, float]:
    """For each k, top-1 accuracy; for several labels an image, mean average precision."""
    if labels.ndim == 2:
        votes = knn_votes(bank, labels, queries, ks, classes, temperature, block)
        return {k: metrics.mean_average_precision(votes[k], query_labels) for k in ks}
    right, start = dict.fromkeys(ks, 0), 0
    for part in _votes_by_part(bank, labels, queries, ks, classes, temperature, block):
        truth = query_labels[start : start + len(part[ks[0]])]
        right = {k: right[k] + int((part[k].argmax(dim=1) == truth).sum()) for k in ks}
        start += len(truth)
    return {k: right[k] / start for k in ks}


@torch.no_grad()
def nearest(bank: Tensor, queries: Tensor, k: int, block: int, first: int | None = None) -> tuple[Tensor, Tensor]:
    """Similarities and rows [N, k] of the nearest of the bank, best first; both are of unit length.

    `first`: the queries are the bank's own rows from there on, and none is its own neighbour.
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
def _votes_by_part(
    bank: Tensor,
    labels: Tensor,
    queries: Tensor | None,
    ks: Sequence[int],
    classes: int,
    temperature: float | None,
    block: int,
) -> Iterator[Votes]:
    """So many queries at a time that neither their similarities nor their votes take more than a block."""
    _check(bank, labels, queries, ks)
    bank = F.normalize(bank.float(), dim=1)
    asked = bank if queries is None else F.normalize(queries.float(), dim=1)
    step = max(1, block // max(min(len(bank), 1 << 16), classes * len(ks)))
    for start in range(0, len(asked), step):
        with exact_matmul():
            first = start if queries is None else None
            similarity, rows = nearest(bank, asked[start : start + step], max(ks), block, first)
        weights = _weights(similarity, temperature)
        yield {k: _shares(weights[:, :k], rows[:, :k], labels, classes) for k in ks}


def _weights(similarity: Tensor, temperature: float | None) -> Tensor:
    """Relative to the nearest neighbour, whose vote is 1: no temperature can over- or underflow them all."""
    if temperature is None:
        return torch.ones_like(similarity)
    return ((similarity - similarity[:, :1]) / temperature).exp()


def _shares(weights: Tensor, rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    if labels.ndim == 2:
        votes = F.embedding_bag(rows, labels.to(weights), per_sample_weights=weights.contiguous(), mode="sum")
    else:
        votes = weights.new_zeros(len(rows), classes).scatter_add_(1, labels[rows], weights)
    return votes / weights.sum(dim=1, keepdim=True)


@contextmanager
def exact_matmul() -> Iterator[None]:
    """Training allows TF32 products, whose error of 1e-3 makes other images the nearest."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _check(bank: Tensor, labels: Tensor, queries: Tensor | None, ks: Sequence[int]) -> None:
    if not ks or min(ks) < 1:
        raise UserError(f"k-NN needs at least one neighbour, not k = {list(ks)}.")
    there = len(bank) - (queries is None)
    if max(ks) > there:
        raise UserError(f"k-NN with k = {max(ks)} needs as many labelled images; there are {there}. Use a smaller k.")
    if len(bank) != len(labels):
        raise UserError(f"{len(bank)} features and {len(labels)} labels do not belong together.")
    for features in (bank, queries):
        if features is not None and not features.isfinite().all():
            bad = int((~features.isfinite()).any(dim=1).sum())
            raise UserError(f"The features are not finite for {bad} of {len(features)} images. Did training diverge?")
