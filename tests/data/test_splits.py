from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pictures import put, put_classes

from vitling import data
from vitling.data.config import DataConfig
from vitling.data.dataset import BadFile, Dataset
from vitling.data.scan import ImageFacts
from vitling.data.splits import drop_bad, require_labels
from vitling.errors import UserError


def save_arrays(path, y, **more):
    np.savez(path, x=np.zeros((len(y), 4, 4), np.uint8), y=y, **more)
    return path


def counts(dataset):
    return np.bincount(dataset.labels, minlength=len(dataset.class_names)).tolist()


def write_groups(tmp_path, groups, labels):
    """Write a CSV whose rows all point to one image, because only groups and labels matter here."""
    put(tmp_path / "x.png", 0)
    rows = [f"x.png,{label},{group}" for group, label in zip(groups, labels)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    return tmp_path / "list.csv"


def test_a_tenth_of_each_class_is_held_out(tmp_path):
    splits = data.open(save_arrays(tmp_path / "a.npz", np.repeat([0, 1, 2], [20, 100, 40])))
    assert counts(splits.val) == [2, 10, 4]
    assert counts(splits.train) == [18, 90, 36]
    assert not set(splits.train.keys) & set(splits.val.keys)
    assert any("16 of 160 train images are held out as val (by class), seed 0" in note for note in splits.notes)


def test_seed_determines_the_hold_out(tmp_path):
    path = save_arrays(tmp_path / "a.npz", np.repeat([0, 1], 30))
    held = [tuple(data.open(path, val="0.2", seed=seed).val.keys) for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


def test_small_classes_do_not_all_round_to_zero(tmp_path):
    splits = data.open(save_arrays(tmp_path / "a.npz", np.repeat(np.arange(50), 4)))
    assert len(splits.val) == 20
    assert max(counts(splits.val)) == 1


@pytest.mark.parametrize(("images", "named"), [((9, 9, 1), ["2"]), ((9, 9, 2), []), ((9, 1, 1), [])])
def test_a_class_with_one_image_is_named_unless_most_have_one(tmp_path, images, named):
    warnings = data.open(save_arrays(tmp_path / "a.npz", np.repeat([0, 1, 2], images))).warnings
    assert warnings == [f"Classes with one image only: {name}. Are their names spelt correctly?" for name in named]


def test_every_class_stays_in_train(tmp_path):
    splits = data.open(save_arrays(tmp_path / "a.npz", np.repeat([0, 1, 2, 3], [1, 2, 3, 50])), val="0.9")
    assert min(counts(splits.train)) >= 1


def test_val_none_merges_the_val_split_of_the_data(tmp_path):
    for split, first in (("train", 0), ("val", 50)):
        put_classes(tmp_path / split, {"a": 10, "b": 10}, first)
    assert len(data.open(tmp_path).val) == 20
    merged = data.open(tmp_path, val="none")
    assert merged.val is None
    assert len(merged.train) == 40
    assert any("val split of the data (20 images) is used as part of train" in note for note in merged.notes)
    fifth = data.open(tmp_path, val="0.2")
    assert (len(fifth.train), len(fifth.val)) == (32, 8)


@pytest.mark.parametrize("val", ["0", "1", "2", "half", "-0.1", "nan"])
def test_val_must_be_a_fraction(tmp_path, val):
    with pytest.raises(UserError, match="a fraction between 0 and 1"):
        data.open(save_arrays(tmp_path / "a.npz", np.repeat([0, 1], 9)), val=val)


def test_too_few_to_hold_out(tmp_path):
    with pytest.raises(UserError, match=r"too few images or groups.*--val none"):
        data.open(save_arrays(tmp_path / "a.npz", np.array([0, 1])))


@pytest.mark.parametrize("folds", [0, 4])
def test_groups_are_never_separated(tmp_path, folds):
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 40, 400)
    path = write_groups(tmp_path, groups, [f"c{group % 4}" for group in groups])
    splits = data.open(path, DataConfig(folds=folds))
    assert not set(splits.train.groups) & set(splits.val.groups)
    assert 0.04 < len(splits.val) / 400 < (0.4 if folds else 0.2)
    assert min(counts(splits.train)) > 0
    assert min(counts(splits.val)) > 0


def test_few_large_groups_per_class_still_yield_a_val_split(tmp_path):
    groups = np.repeat(np.arange(40), 10)
    splits = data.open(write_groups(tmp_path, groups, [f"c{group // 2}" for group in groups]))
    assert len(splits.val) == 40
    assert max(counts(splits.val)) == 10


def test_images_without_a_group_form_their_own(tmp_path):
    splits = data.open(write_groups(tmp_path, ["", "", "p", "p"], "aabb"), val="none")
    assert splits.train.groups.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("task", ["single", "multi", "none"])
def test_folds_cover_everything_once(tmp_path, task):
    rng = np.random.default_rng(0)
    labels = {
        "single": {"y": np.repeat([0, 1, 2], [31, 17, 5])},
        "multi": {"y": (rng.random((53, 4)) < 0.3).astype(int)},
    }
    np.savez(tmp_path / "a.npz", x=np.zeros((53, 4, 4), np.uint8), **labels.get(task, {}))
    seen = Counter()
    for fold in range(5):
        splits = data.open(tmp_path / "a.npz", DataConfig(folds=5, fold=fold))
        assert len(splits.train) + len(splits.val) == 53
        assert 8 <= len(splits.val) <= 13
        if task == "single":
            assert counts(splits.val)[2] == 1
        seen.update(splits.val.keys)
    assert set(seen.values()) == {1}
    assert len(seen) == 53


def test_invalid_folds_are_rejected(tmp_path):
    path = save_arrays(tmp_path / "a.npz", np.repeat([0, 1], 9))
    with pytest.raises(UserError, match="numbered from 0"):
        data.open(path, DataConfig(folds=5, fold=5))
    with pytest.raises(UserError, match="drop --val"):
        data.open(path, DataConfig(folds=5), val="none")
    with pytest.raises(UserError, match="18 images, too few for 50 folds"):
        data.open(path, DataConfig(folds=50, fold=49))
    with pytest.raises(UserError, match="too few for 2147483647 folds"):
        data.open(path, DataConfig(folds=2**31 - 1, fold=0))


def test_multi_label_hold_out_keeps_class_frequencies(tmp_path):
    labels = (np.random.default_rng(0).random((600, 5)) < [0.5, 0.3, 0.1, 0.05, 0.02]).astype(int)
    splits = data.open(save_arrays(tmp_path / "a.npz", labels), val="0.2")
    share = splits.val.labels.sum(axis=0) / labels.sum(axis=0)
    assert 0.15 < len(splits.val) / 600 < 0.25
    assert (np.abs(share - 0.2) < 0.07).all()


def test_unlabelled_images_are_held_out_only_on_request(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((50, 4, 4), np.uint8))
    assert data.open(tmp_path / "a.npz").val is None
    assert len(data.open(tmp_path / "a.npz", val="0.1").val) == 5


def test_opening_the_test_split_is_reported(tmp_path):
    splits = data.open("embedded:digits")
    reasons = []
    splits.on_test_opened = reasons.append
    splits.open_test("the end")
    assert reasons == ["the end"]


def test_images_and_masks_are_not_classes(tmp_path):
    put_classes(tmp_path / "street", {"images": 2, "masks": 2})
    with pytest.raises(UserError, match="vitling"):
        require_labels(data.open(tmp_path / "street", val="none"))


def test_require_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 4, 4), np.uint8))
    with pytest.raises(UserError, match=r"has no labels\. Put the images into one folder per class"):
        require_labels(data.open(tmp_path / "a.npz"))
    put_classes(tmp_path / "one", {"cat": 3})
    with pytest.raises(UserError, match='one class only, "cat"'):
        require_labels(data.open(tmp_path / "one", val="none"))
    require_labels(data.open("embedded:digits"))


def make_scanned(n, bad=(), labels=None):
    labels = np.arange(n) % 2 if labels is None else np.array(labels)
    dataset = Dataset("made/train", [f"{i}.png" for i in range(n)], lambda row: b"", np.arange(n), labels, ("a", "b"))
    facts = ImageFacts.empty(n)
    facts.ok[:] = True
    facts.ok[list(bad)] = False
    facts.reasons = dict.fromkeys(bad, "truncated")
    return dataset, facts


def test_one_percent_may_be_bad():
    dataset, bad = drop_bad(*make_scanned(200, bad=[3, 7]), allow_bad=False)
    assert len(dataset) == 198
    assert bad == [BadFile("3.png", "truncated", "train"), BadFile("7.png", "truncated", "train")]
    assert drop_bad(*make_scanned(5), allow_bad=False)[1] == []


def test_more_than_one_percent_bad_raises_unless_allowed():
    with pytest.raises(
        UserError,
        match=r"10 of 200 images in train cannot be used \(5.0%.*0.png: truncated, .* and 5 more.*--allow-bad",
    ):
        drop_bad(*make_scanned(200, bad=range(10)), allow_bad=False)
    assert len(drop_bad(*make_scanned(200, bad=range(10)), allow_bad=True)[0]) == 190


def test_known_bad_files_count():
    known = [BadFile("gone.png", "no such file", "train"), BadFile("x.png", "no such file", "test")]
    assert len(drop_bad(*make_scanned(200, bad=[1]), allow_bad=False, known_bad=known)[1]) == 1
    with pytest.raises(UserError, match="3 of 201"):
        drop_bad(*make_scanned(200, bad=[1, 2]), allow_bad=False, known_bad=known)


def test_class_left_empty_raises_in_train_only():
    labels = [0] * 299 + [1]
    with pytest.raises(UserError, match="no image of b is left"):
        drop_bad(*make_scanned(300, [299], labels), allow_bad=False)
    assert len(drop_bad(*make_scanned(300, [299], labels), allow_bad=False, split="val")[0]) == 299
    kept, _ = drop_bad(*make_scanned(300, [299], labels), allow_bad=True)
    assert kept.class_names == ("a", "b")


def test_no_usable_image_always_raises():
    with pytest.raises(UserError, match="none is left"):
        drop_bad(*make_scanned(3, bad=range(3)), allow_bad=True)


@pytest.mark.parametrize("seed", range(5))
def test_folds_leave_every_class_in_train(tmp_path, seed):
    """Two images of a class are never val together, and the only one of its class never is."""
    path = save_arrays(tmp_path / "a.npz", np.repeat(np.arange(12), [1, 1, 2, 2, 2, 2, 2, 3, 3, 10, 10, 30]))
    seen = Counter()
    for fold in range(5):
        splits = data.open(path, DataConfig(folds=5, fold=fold), seed=seed)
        assert min(counts(splits.train)) >= 1
        seen.update(splits.val.keys)
        assert any("2 images are in train in every fold" in note for note in splits.notes)
    assert len(seen) == 66
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("seed", range(5))
def test_multi_label_and_grouped_folds_leave_every_class_in_train(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rare = (rng.random((60, 8)) < [0.5, 0.3, 0.05, 0.05, 0.04, 0.03, 0.03, 0.03]).astype(int)
    rare[np.arange(8), np.arange(8)] = 1
    several = save_arrays(tmp_path / "a.npz", rare)
    groups = rng.integers(0, 12, 80)
    grouped = write_groups(tmp_path, groups, [f"c{(group + i % 2) % 7}" for i, group in enumerate(groups)])
    for fold in range(4):
        config = DataConfig(folds=4, fold=fold)
        assert data.open(several, config, seed=seed).train.labels.any(axis=0).all()
        assert min(counts(data.open(grouped, config, seed=seed).train)) >= 1


def test_classes_without_images_do_not_count(tmp_path):
    path = save_arrays(tmp_path / "a.npz", np.zeros(9, int), class_names=np.array(["cat", "dog"]))
    with pytest.raises(UserError, match='one class only, "cat"'):
        require_labels(data.open(path, val="none"))
    with pytest.raises(UserError, match='one class only, "cat"'):
        data.open(path)


@pytest.mark.parametrize("val", ["none", "0.25"])
def test_a_val_split_without_labels_costs_train_no_labels(tmp_path, val):
    put_classes(tmp_path / "train", {"cat": 8, "dog": 8})
    put(tmp_path / "val/x.png", 99)
    splits = data.open(str(tmp_path), val=val)
    assert splits.train.labels is not None
    assert "The val split has no labels and is not used." in splits.notes
