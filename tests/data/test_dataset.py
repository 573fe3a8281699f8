"""A pool of unlabelled images beside labelled ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitling.data.dataset import UNLABELLED, Dataset, Splits, merge_unlabelled
from vitling.data.splits import require_labels
from vitling.errors import UserError


def made(name: str, n: int, labels=None, **more) -> Dataset:
    """Its images are their own keys."""
    keys = [f"{name}-{i}" for i in range(n)]
    return Dataset(name, keys, lambda row: keys[row].encode(), np.arange(n), labels, **more)


@pytest.fixture
def labelled():
    """Not in the order of its source."""
    return made("cats", 6, np.array([1, 0, 1, 0, 1, 1]), class_names=("a", "b")).take([4, 1, 2, 0, 3])


def test_the_first_keep_their_ids(labelled):
    both = merge_unlabelled(labelled, made("pool", 3).take([2, 0]))
    assert len(both) == 7
    assert both.keys == [*labelled.keys, "pool-2", "pool-0"]
    assert [both.read(i).decode() for i in range(7)] == both.keys


def test_labels_are_kept_where_they_exist(labelled):
    both = merge_unlabelled(labelled, made("pool", 2))
    assert both.partial_labels.tolist() == [*labelled.labels.tolist(), UNLABELLED, UNLABELLED]
    assert both.class_names == labelled.class_names
    assert both.take([6, 1]).partial_labels.tolist() == [UNLABELLED, 0]


def test_no_image_without_a_label_is_taken_for_one_of_a_class(labelled):
    """Whatever wants a class of every image finds none."""
    both = merge_unlabelled(labelled, made("pool", 2))
    assert both.task == "none"
    assert both.labels is None
    with pytest.raises(UserError, match="one class per image"):
        both.subset(4, balanced=True)
    with pytest.raises(UserError, match="no labels"):
        require_labels(Splits(both))


def test_several_labels_an_image_are_not_kept():
    both = merge_unlabelled(made("many", 3, np.ones((3, 2), bool), class_names=("a", "b")), made("pool", 2))
    assert both.labels is both.partial_labels is None
    assert both.class_names == ()


def test_without_labels_there_are_none():
    both = merge_unlabelled(made("plain", 3), made("pool", 2))
    assert both.labels is both.partial_labels is both.groups is None


def test_groups_stay_and_images_without_one_are_alone(labelled):
    grouped = replace(labelled, groups=np.array([3, 3, 7, 7, 7]))
    first = merge_unlabelled(grouped, made("pool", 2)).groups
    assert first[:5].tolist() == [3, 3, 7, 7, 7]
    assert len(set(first.tolist())) == 4
    second = merge_unlabelled(labelled, replace(made("pool", 2), groups=np.array([3, 3]))).groups
    assert second[5:].tolist() == [3, 3]
    assert len(set(second.tolist())) == 6
