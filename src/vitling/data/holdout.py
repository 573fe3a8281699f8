"""Hold-outs and folds: stratified by class, with groups kept together, deterministic for a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitling.data.config import DataConfig
from vitling.data.dataset import Dataset
from vitling.errors import UserError


def hold_out_images(
    dataset: Dataset,
    stratify_by: Sequence[np.ndarray | None],
    config: DataConfig,
    fraction: float,
    seed: int,
    too_few: str,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the ids that stay in train, the ids held out, and how many images look like another.

    Look-alikes are kept together. Images are stratified by the first of the given labels that can be divided. Raises
    UserError with the message `too_few` if either part would be empty.
    """
    from vitling.data.look_alikes import group_look_alikes

    groups, alike = group_look_alikes(dataset, config)
    for labels in stratify_by:
        held = hold_out(labels, groups, len(dataset), fraction, seed)
        if held.any():
            break
    if not held.any() or held.all():
        raise UserError(too_few)
    return np.flatnonzero(~held), np.flatnonzero(held), alike


def hold_out(labels: np.ndarray | None, groups: np.ndarray | None, n: int, fraction: float, seed: int) -> np.ndarray:
    """Return bool [N]: the images held out. Every class keeps at least one group (or image) in train."""
    units, classes = _find_units(labels, groups, n)
    bins = _stratify(classes, (1 - fraction, fraction), seed)
    _return_lost_classes(units, classes, bins)
    return bins[units] == 1


def assign_folds(labels: np.ndarray | None, groups: np.ndarray | None, n: int, folds: int, seed: int) -> np.ndarray:
    """Return int [N]: the fold of each image, or -1 if it stays in train because its class is in no other group."""
    units, classes = _find_units(labels, groups, n)
    bins = _stratify(classes, (1 / folds,) * folds, seed)
    _spread_classes(units, classes, bins, folds)
    return bins[units]


Classes = tuple[np.ndarray, np.ndarray]  # distinct pairs (unit, class)


def _find_units(labels: np.ndarray | None, groups: np.ndarray | None, n: int) -> tuple[np.ndarray, Classes]:
    """Return the unit of each image (its group, or itself) and the classes of each unit.

    Images without a label count as a class of their own, so that they are stratified too.
    """
    units = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    if labels is None:
        image, label = np.arange(n), np.zeros(n, np.int64)
    elif labels.ndim == 1:
        image, label = np.arange(n), labels
    else:
        with_none = np.concatenate([labels, ~labels.any(axis=1, keepdims=True)], axis=1)
        image, label = np.nonzero(with_none)
    pairs = np.unique(np.stack([units[image], label], axis=1), axis=0)
    return units, (pairs[:, 0], pairs[:, 1])


def _stratify(classes: Classes, shares: Sequence[float], seed: int) -> np.ndarray:
    """Assign a bin to each unit by iterative stratification: rarest class first, each unit to the neediest bin.

    Quotas count units, not images: with few large groups per class, a quota of images would be smaller than any group.
    """
    rng = np.random.default_rng(seed)
    of_unit, of_class = _group_values(*classes), _group_values(*reversed(classes))
    quota = _round_quotas(np.array([len(members) for members in of_class]), np.array(shares), rng).tolist()
    room = (np.array(shares) * len(of_unit)).tolist()
    bins = np.full(len(of_unit), -1)
    left = np.array([len(members) for members in of_class])
    while left.any():
        rarest = int(np.argmin(np.where(left > 0, left, np.iinfo(np.int64).max)))
        for u in rng.permutation(of_class[rarest]):
            if bins[u] >= 0:
                continue
            need = [(wanted[rarest], free) for wanted, free in zip(quota, room)]
            best = need.index(max(need))
            bins[u] = best
            room[best] -= 1
            for c in of_unit[u]:
                quota[best][c] -= 1
                left[c] -= 1
    return bins


def _round_quotas(counts: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return int [bins, classes]. Remainders go to the bin that is owed most so far, so that many small classes do not
    all round the same way."""
    wanted = np.outer(shares, counts)
    quota = np.floor(wanted + 1e-9).astype(np.int64)
    owed = np.zeros(len(shares))
    for c in rng.permutation(len(counts)):
        owed += wanted[:, c] - quota[:, c]
        for _ in range(counts[c] - quota[:, c].sum()):
            bin = int(np.argmax(owed))
            quota[bin, c] += 1
            owed[bin] -= 1
    return quota


def _return_lost_classes(units: np.ndarray, classes: Classes, bins: np.ndarray) -> None:
    """Move the smallest unit of each class that train (bin 0) lost completely back to train."""
    size = np.bincount(units, minlength=len(bins))
    for members in _group_values(*reversed(classes)):
        if members and all(bins[u] != 0 for u in members):
            bins[min(members, key=lambda u: (size[u], u))] = 0


def _spread_classes(units: np.ndarray, classes: Classes, bins: np.ndarray, folds: int) -> None:
    """Move a unit of each class that lies in a single fold, and would be missing from train there, to another fold, or
    to none (-1) if every move leaves some class in a single fold."""
    size = np.bincount(units, minlength=len(bins))
    of_unit, of_class = _group_values(*classes), _group_values(*reversed(classes))

    def is_in_one_fold(c: int) -> bool:
        return len({bins[u] for u in of_class[c]}) == 1 and bins[of_class[c][0]] >= 0

    for c, members in enumerate(of_class):
        if not members or not is_in_one_fold(c):
            continue
        unit = min(members, key=lambda u: (size[u], u))
        fullness = np.bincount(bins[bins >= 0], minlength=folds)
        for fold in (*np.argsort(fullness, kind="stable"), -1):
            bins[unit] = fold
            if not any(is_in_one_fold(other) for other in of_unit[unit]):
                break


def _group_values(index: np.ndarray, value: np.ndarray) -> list[list[int]]:
    """Return a list with, for each index, the values paired with it."""
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index))
    return [values.tolist() for values in np.split(value[order], ends[:-1])]
