from __future__ import annotations

import numpy as np
import pytest

from vitling.data.batches import (
    compute_batch_sizes,
    compute_class_weights,
    count_images_per_process,
    draw_epoch_order,
    slice_batch,
    split_batches,
)


def test_each_epoch_has_every_image_once_in_its_own_order():
    orders = [draw_epoch_order(50, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order) == list(range(50))
    assert len({tuple(order) for order in orders}) == 4
    assert np.array_equal(orders[1], draw_epoch_order(50, 0, 1))


def test_balanced_epochs_have_equal_class_counts():
    labels = np.repeat([0, 1, 2], [80, 15, 5])
    order = draw_epoch_order(100, 0, 0, balanced_by=labels)
    counts = np.bincount(labels[order % 100])
    assert len(order) == 100
    assert counts.max() - counts.min() <= 1
    assert len(set(order.tolist())) == 100  # a repeated image has another draw id
    small = order[labels[order % 100] == 2]
    assert set(small % 100) == set(range(95, 100))


@pytest.mark.parametrize(("n", "batch", "remainder", "sizes"), [
    (10, 4, "keep", [4, 4, 2]), (10, 4, "drop", [4, 4]), (3, 4, "drop", [3]), (4, 4, "keep", [4]),
    (8, 4, "drop", [4, 4]), (30, 8, "even", [8] * 4), (34, 8, "even", [8] * 4), (8, 4, "even", [4, 4]),
    (3, 4, "even", [3]), (2040, 256, "even", [256] * 8), (1632, 256, "even", [256] * 6),
    (2040, 1024, "even", [1024] * 2), (600, 512, "even", [512, 88]), (10, 7, "even", [7, 3]),
])  # fmt: skip
def test_batches(n, batch, remainder, sizes):
    assert compute_batch_sizes(n, batch, remainder) == sizes
    order = draw_epoch_order(n, 0, 0, count=sum(sizes))
    batches = split_batches(order, sizes)
    assert [len(b) for b in batches] == sizes
    assert np.array_equal(np.concatenate(batches), order[: sum(sizes)])


def test_more_passes_than_images_in_a_batch_are_no_error_here():
    assert compute_batch_sizes(100, 32, "keep", 64) == [32, 32, 32, 4]
    assert compute_batch_sizes(128, 32, "even", 64) == [64, 64]


def test_even_batches_have_one_size_for_every_dataset_and_divide_into_passes():
    evened = 0
    for n, batch, passes in np.random.default_rng(0).integers([2, 1, 1], [3000, 400, 9], (300, 3)).tolist():
        passes = min(passes, batch)
        sizes, kept = compute_batch_sizes(n, batch, "even", passes), compute_batch_sizes(n, batch)
        if sizes != kept:
            evened += 1
            assert set(sizes) == {batch // passes * passes}
            assert abs(sum(sizes) - n) <= min(n / 8, batch / 2)
        else:
            even = batch // passes * passes
            assert n <= batch or n % batch == 0 or abs(round(n / even) * even - n) > n / 8
    assert evened > 100


@pytest.mark.parametrize("balanced", [False, True])
def test_images_repeated_to_fill_an_epoch_get_draws_of_their_own(balanced):
    labels = np.arange(30) % 3 if balanced else None
    order = draw_epoch_order(30, 0, 0, labels, count=32)
    assert len(set(order.tolist())) == 32
    assert set((order % 30).tolist()) == set(range(30))
    if not balanced:
        assert np.array_equal(order[:30], draw_epoch_order(30, 0, 0))
        assert np.array_equal(order[30:], order[:2] + 30)
        last = order[-8:] % 30
        assert len(set(last.tolist())) == 8


def test_fewer_draws_than_images_are_the_first_of_an_epoch():
    for labels in (None, np.arange(30) % 3):
        assert np.array_equal(draw_epoch_order(30, 0, 0, labels, count=24), draw_epoch_order(30, 0, 0, labels))


@pytest.mark.parametrize(("total", "world", "accumulate"), [(8, 2, 1), (7, 2, 2), (1, 2, 1), (5, 3, 2), (2, 1, 4)])
def test_weighted_slices_average_to_the_global_mean(total, world, accumulate):
    """Check that the mean over processes of sum(weight * local mean) is the mean over the batch."""
    values = np.random.default_rng(0).normal(size=total)
    seen, sums = [], []
    for rank in range(world):
        slices = slice_batch(total, rank, world, accumulate)
        assert len(slices) == min(accumulate, total)  # all processes need the same number of passes
        sums.append(sum(weight * values[part].mean() for part, weight in slices))
        seen += [i for part, weight in slices if weight for i in part]
    assert sorted(seen) == list(range(total))
    assert np.isclose(np.mean(sums), values.mean())


@pytest.mark.parametrize(("total", "world", "accumulate"), [(8, 2, 1), (7, 2, 2), (1, 2, 1), (5, 3, 2), (2, 2, 4)])
def test_image_counts_match_local_slices(total, world, accumulate):
    passes = count_images_per_process(total, world, accumulate)
    for rank in range(world):
        own = [round(weight * total / world) for _, weight in slice_batch(total, rank, world, accumulate)]
        assert [held[rank] for held in passes] == own
    assert sum(map(sum, passes)) == total


def test_class_weights_balance_the_loss():
    labels = np.repeat([0, 1], [30, 10])
    weights = compute_class_weights(labels, 3)
    assert np.isclose(weights[labels].mean(), 1)
    assert np.isclose(30 * weights[0], 10 * weights[1])
    assert weights[2] == 0


def test_multi_label_class_weights_are_negatives_over_positives():
    labels = np.array([[True, False], [False, False], [True, True], [False, False]])
    assert compute_class_weights(labels, 2).tolist() == [1.0, 3.0]
