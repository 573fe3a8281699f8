"""Near duplicates stay on one side of a hold-out."""

from __future__ import annotations

import numpy as np
import pytest
from pictures import put, put_bursts, put_classes

from vitling import data
from vitling.data import look_alikes
from vitling.data.config import DataConfig
from vitling.data.look_alikes import group_look_alikes
from vitling.data.scan import scan
from vitling.data.splits import read_splits


@pytest.fixture
def bursts(tmp_path):
    return put_bursts(tmp_path / "images")


def scene(key: str) -> str:
    return key.removesuffix(".png").removesuffix("-again")


@pytest.mark.parametrize("seed", range(3))
def test_a_hold_out_separates_no_look_alikes(bursts, seed):
    splits = data.open(bursts, val="0.3", seed=seed)
    assert not {scene(key) for key in splits.train.keys} & {scene(key) for key in splits.val.keys}
    assert len(splits.train) + len(splits.val) == 60
    assert any("40 images of train look almost the same as another" in note for note in splits.notes)


def test_folds_separate_no_look_alikes(bursts):
    for fold in range(3):
        splits = data.open(bursts, DataConfig(folds=3, fold=fold))
        assert not {scene(key) for key in splits.train.keys} & {scene(key) for key in splits.val.keys}


ZEROS = np.zeros(60, np.int64)


@pytest.mark.parametrize(
    "content",
    [
        {"cluster": ZEROS.astype(float)},
        {"cluster": ZEROS.astype(complex)},
        {"cluster": ZEROS.astype(bool)},
        {"cluster": ZEROS.astype("datetime64[s]")},
        {"cluster": np.array(["a"] * 60)},
        {"cluster": ZEROS[:-1]},
        {"cluster": ZEROS - 1},
        {"cluster": ZEROS + 60},
        {"other": ZEROS},
        b"",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<i8',\n",
        b"not a zip file",
    ],
    ids=str,
)
def test_a_damaged_cache_is_replaced(content, bursts, tmp_path, monkeypatch):
    monkeypatch.setenv("VITLING_CACHE", str(tmp_path / "cache"))
    dataset = read_splits(bursts, DataConfig()).train
    expected, alike = group_look_alikes(dataset, DataConfig())
    (path,) = (tmp_path / "cache/look-alikes").iterdir()
    path.write_bytes(content) if isinstance(content, bytes) else np.savez(path, **content)
    look_alikes._known.clear()
    found = group_look_alikes(dataset, DataConfig())
    assert found[0].tolist() == expected.tolist()
    assert found[1] == alike
    with np.load(path) as cached:
        assert cached["cluster"].dtype == np.int64


def test_without_look_alikes_nothing_changes(tmp_path):
    put_classes(tmp_path, {"cat": 20, "dog": 20})
    groups, alike = group_look_alikes(read_splits(tmp_path, DataConfig()).train, DataConfig())
    assert groups is None
    assert alike == 0


def test_groups_are_joined_by_look_alikes(tmp_path):
    """Patients a and b share a picture, so their four images stay together; c is alone."""
    for i, seed in enumerate((0, 1, 1, 2, 3, *range(10, 30))):
        put(tmp_path / f"{i}.png", seed, *((96, 64) if i == 2 else ()))
    patients = ["a", "a", "b", "b", "c", *(f"p{i}" for i in range(20))]
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},{patient}" for i, patient in enumerate(patients)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    dataset = read_splits(tmp_path / "list.csv", DataConfig()).train
    groups, alike = group_look_alikes(dataset, DataConfig())
    by_key = dict(zip(dataset.keys, groups.tolist()))
    assert alike == 2
    assert len({by_key[f"{i}.png"] for i in range(4)}) == 1
    assert len(set(by_key.values())) == 22


def test_placeholders_may_be_separated(tmp_path):
    """A third of the images are the same placeholder: one unit of that size would spoil the hold-out."""
    put_classes(tmp_path, {"cat": 20})
    for i in range(10):
        put(tmp_path / "dog" / f"{i}.png", 99)
    assert group_look_alikes(read_splits(tmp_path, DataConfig()).train, DataConfig()) == (None, 0)


def test_images_are_decoded_once(bursts, monkeypatch):
    train = read_splits(bursts, DataConfig()).train
    first, _ = group_look_alikes(train, DataConfig())
    monkeypatch.setattr("vitling.data.look_alikes.scan", None)
    again, _ = group_look_alikes(train, DataConfig())
    later, _ = group_look_alikes(read_splits(bursts, DataConfig()).train, DataConfig())  # the next start
    assert np.array_equal(first, again)
    assert np.array_equal(first, later)


def test_known_facts_are_not_searched_again(bursts, monkeypatch):
    train = read_splits(bursts, DataConfig()).train
    facts = scan(train)
    monkeypatch.setattr("vitling.data.look_alikes.scan", None)
    groups, alike = group_look_alikes(train, DataConfig(), facts)
    assert alike == 40
    assert len(set(groups.tolist())) == 40
