"""Sampling without state: epoch order, batch sizes and each process's slice follow from (seed, epoch), so a resume
needs no sampler state."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vitling.keys import make_rng

MAX_EVEN_CHANGE = 1 / 8  # of the images of an epoch; beyond it the remainder is kept
# The last, incomplete batch of an epoch: keep it, drop it, or leave out or repeat images so that all are whole.
Remainder = Literal["keep", "drop", "even"]


def draw_epoch_order(
    n: int, seed: int, epoch: int, balanced_by: np.ndarray | None = None, count: int | None = None
) -> np.ndarray:
    """Return the draw ids (instance id + n * repetition) of one epoch: n of them, or `count` if that is more.

    `balanced_by` (class of each image) makes all classes equally frequent: small ones repeat, large ones are sampled.
    """
    rng, count = make_rng("order", seed, epoch), max(n, count or n)
    if balanced_by is None:
        order = rng.permutation(n)
        return np.concatenate([order, order[: count - n] + n])  # no batch has an image twice
    classes = [np.flatnonzero(balanced_by == c) for c in np.unique(balanced_by)]
    rounds = -(-count // len(classes))
    columns = [_repeat_shuffled(members, rounds, n, rng) for members in classes]
    rows = np.stack(columns, axis=1)  # each row has every class once
    for row in rows:
        rng.shuffle(row)
    return rows.ravel()[:count]


def _repeat_shuffled(members: np.ndarray, count: int, n: int, rng: np.random.Generator) -> np.ndarray:
    repetitions = -(-count // len(members))
    return np.concatenate([rng.permutation(members) + n * r for r in range(repetitions)])[:count]


def compute_batch_sizes(n: int, batch: int, remainder: Remainder = "keep", passes: int = 1) -> list[int]:
    """Return the sizes of the batches of an epoch; fewer images than `batch` make one batch.

    Even batches have `batch` images, less what does not divide into `passes`, whatever n is. Their number is rounded,
    so an epoch leaves out or repeats up to half a batch; if that is too much of it, the remainder is kept instead.
    """
    if n <= batch:
        return [n]
    if remainder == "even":
        even = max(1, batch // passes) * passes
        steps = round(n / even)
        if abs(steps * even - n) <= MAX_EVEN_CHANGE * n:
            return [even] * steps
    full, left = divmod(n, batch)
    return [batch] * full + [left] * (left > 0 and remainder != "drop")


def split_batches(order: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])


def slice_batch(total: int, rank: int, world: int, accumulate: int) -> list[tuple[np.ndarray, float]]:
    """Return this process's positions in a global batch of `total`, one slice for each accumulated pass, with weights.

    With these weights the average over processes of the sum over slices is the mean over the global batch. A slice
    that would be empty (last batch smaller than the number of processes) takes position 0 with weight 0, so that
    every process takes part in the gradient exchange. All processes have the same number of slices.
    """
    slices = np.array_split(np.arange(total), world * accumulate)[rank * accumulate : (rank + 1) * accumulate]
    placeholder = np.zeros(1, dtype=np.int64)
    return [(ids if len(ids) else placeholder, len(ids) * world / total) for ids in slices[: min(accumulate, total)]]


def count_images_per_process(total: int, world: int, accumulate: int) -> list[tuple[int, ...]]:
    """Count, for each pass, the images that `slice_batch` gives every process; 0 for a placeholder."""
    slices = np.array_split(np.arange(total), world * accumulate)
    return [tuple(map(len, slices[i::accumulate])) for i in range(min(accumulate, total))]


def compute_class_weights(labels: np.ndarray, classes: int) -> np.ndarray:
    """Return inverse class frequencies, scaled to average 1 over the images.

    For multi-label data: the weight of a positive, negatives / positives, between 0.01 and 100.
    """
    if labels.ndim == 2:
        positives = labels.sum(axis=0)
        return np.clip((len(labels) - positives) / np.maximum(positives, 1), 0.01, 100.0)
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    present = np.count_nonzero(counts)
    return np.where(counts > 0, len(labels) / (present * np.maximum(counts, 1)), 0.0)
