"""A pool of unlabelled images beside labelled ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitling.data.dataset import UNLABELLED, Dataset, Splits, merge_unlabelled
from vitling.data.splits import require_labels
from vitling.errors import UserError


def make_dataset(name: str, n: int, labels=None, **more) -> Dataset:
    """Create a dataset in which reading an image returns its key."""
    keys = [f"{name}-{i}" for i in range(n)]
    return Dataset(name, keys, lambda row: keys[row].encode(), np.arange(n), labels, **more)


@pytest.fixture
def labelled():
    """Create a labelled dataset that is not in the order of its reader."""
    return make_dataset("cats", 6, np.array([1, 0, 1, 0, 1, 1]), class_names=("a", "b")).take([4, 1, 2, 0, 3])


def test_merging_keeps_the_ids_of_the_first(labelled):
    both = merge_unlabelled(labelled, make_dataset("pool", 3).take([2, 0]))
    assert len(both) == 7
    assert both.keys == [*labelled.keys, "pool-2", "pool-0"]
    assert [both.read(i).decode() for i in range(7)] == both.keys


def test_merging_keeps_labels_as_partial_labels(labelled):
    both = merge_unlabelled(labelled, make_dataset("pool", 2))
    assert both.partial_labels.tolist() == [*labelled.labels.tolist(), UNLABELLED, UNLABELLED]
    assert both.class_names == labelled.class_names
    assert both.take([6, 1]).partial_labels.tolist() == [UNLABELLED, 0]


def test_unlabelled_images_never_count_as_a_class(labelled):
    """Code that needs a class for every image finds no labels."""
    both = merge_unlabelled(labelled, make_dataset("pool", 2))
    assert both.task == "none"
    assert both.labels is None
    with pytest.raises(UserError, match="one class per image"):
        both.subset(4, balanced=True)
    with pytest.raises(UserError, match="no labels"):
        require_labels(Splits(both))


def test_merging_drops_multi_labels():
    both = merge_unlabelled(
        make_dataset("many", 3, np.ones((3, 2), bool), class_names=("a", "b")), make_dataset("pool", 2)
    )
    assert both.labels is both.partial_labels is None
    assert both.class_names == ()


def test_merging_unlabelled_data_has_no_labels():
    both = merge_unlabelled(make_dataset("plain", 3), make_dataset("pool", 2))
    assert both.labels is both.partial_labels is both.groups is None


def test_merging_keeps_groups_and_adds_single_ones(labelled):
    grouped = replace(labelled, groups=np.array([3, 3, 7, 7, 7]))
    first = merge_unlabelled(grouped, make_dataset("pool", 2)).groups
    assert first[:5].tolist() == [3, 3, 7, 7, 7]
    assert len(set(first.tolist())) == 4
    second = merge_unlabelled(labelled, replace(make_dataset("pool", 2), groups=np.array([3, 3]))).groups
    assert second[5:].tolist() == [3, 3]
    assert len(set(second.tolist())) == 6


def test_classes_are_counted_for_one_label_or_several(labelled):
    assert labelled.count_classes().tolist() == [2, 3]
    several = make_dataset(
        "both", 2, np.array([[True, False, False], [True, True, False]]), class_names=("a", "b", "c")
    )
    assert several.count_classes().tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match="no labels"):
        make_dataset("pool", 3).count_classes()
