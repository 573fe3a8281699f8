"""Which images make up an epoch and a batch, and which part of a batch a process holds. All of it is computed, none
of it remembered: (seed, epoch) says everything, so a resume needs no sampler state."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vitling.keys import make_rng


def epoch_order(n: int, seed: int, epoch: int, balanced_by: np.ndarray | None = None) -> np.ndarray:
    """Draw ids of one epoch: instance id + n * repetition. `balanced_by` (classes) makes every class equally
    frequent: small classes come round again, large ones are sampled."""
    generator = make_rng("order", seed, epoch)
    if balanced_by is None:
        return generator.permutation(n)
    classes = [np.flatnonzero(balanced_by == c) for c in np.unique(balanced_by)]
    turns = -(-n // len(classes))
    drawn = [_repeat_shuffled(members, turns, n, generator) for members in classes]
    in_turns = np.stack(drawn, axis=1)  # each row has every class once
    for row in in_turns:
        generator.shuffle(row)
    return in_turns.ravel()[:n]


def _repeat_shuffled(members: np.ndarray, count: int, n: int, generator: np.random.Generator) -> np.ndarray:
    rounds = -(-count // len(members))
    return np.concatenate([generator.permutation(members) + n * r for r in range(rounds)])[:count]


LEAST_EVEN = 7 / 8  # of --batch
Remainder = Literal[
    "keep", "drop", "even"
]  # what does not fill a batch: a smaller one, none, or all batches are smaller


def batch_sizes(n: int, batch: int, remainder: Remainder = "keep", passes: int = 1) -> list[int]:
    """Of the batches of an epoch. Fewer images than a batch has are one batch. Even ones leave out fewer images than
    there are steps, or passes, which are of one size too; where they would be much smaller, the rest is kept."""
    if n <= batch:
        return [n]
    whole, left = divmod(n, batch)
    each = n // (whole + 1) // passes * passes
    if remainder == "even" and left and each >= LEAST_EVEN * batch:
        return [each] * (whole + 1)
    return [batch] * whole + [left] * (left > 0 and remainder != "drop")


def split_batches(order: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(order[: sum(sizes)], np.cumsum(sizes)[:-1])


def local_slices(total: int, rank: int, world: int, accumulate: int) -> list[tuple[np.ndarray, float]]:
    """This process's positions in a global batch of `total`, one slice for each accumulated pass, with its weight.

    The weights make the average over processes of the sum over slices the mean over the global batch. A slice that
    would be empty (a last batch smaller than the number of processes) takes position 0 with weight 0, so that
    every process still takes part in the exchange of gradients. All processes have equally many slices.
    """
    parts = np.array_split(np.arange(total), world * accumulate)[rank * accumulate : (rank + 1) * accumulate]
    nothing = np.zeros(1, dtype=np.int64)
    return [(part if len(part) else nothing, len(part) * world / total) for part in parts[: min(accumulate, total)]]


def count_images_per_process(total: int, world: int, accumulate: int) -> list[tuple[int, ...]]:
    """For each pass, how many images of it every process has by `local_slices`; 0 where one only keeps it company."""
    parts = np.array_split(np.arange(total), world * accumulate)
    return [tuple(map(len, parts[i::accumulate])) for i in range(min(accumulate, total))]


def class_weights(labels: np.ndarray, classes: int) -> np.ndarray:
    """Inverse frequency, scaled so that the weights average 1 over the images. For several labels an image: how much
    more a positive counts, negatives / positives, at most 100."""
    if labels.ndim == 2:
        positives = labels.sum(axis=0)
        return np.clip((len(labels) - positives) / np.maximum(positives, 1), 0.01, 100.0)
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    present = np.count_nonzero(counts)
    return np.where(counts > 0, len(labels) / (present * np.maximum(counts, 1)), 0.0)
