"""Answers survive the file, and are found by image whatever the order."""

from __future__ import annotations

import numpy as np
import pytest

from vitling.errors import UserError
from vitling.evaluation.answers import load_answers, make_answers, save_answers

NAMES = ["a/1.png", "a/2.png", "b/1.png", "b/2.png"]
LOGITS = np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0], [5.0, 1.0]], dtype=np.float32)


def test_one_label_an_image(tmp_path):
    save_answers(tmp_path, {"last/test": make_answers(LOGITS, np.array([0, 0, 1, 1]), NAMES)})
    found = load_answers(tmp_path)["last/test"]
    assert found.right.tolist() == [True, False, True, False]
    assert not found.several
    order = [2, 0, 3, 1]
    shuffled = make_answers(LOGITS[order], np.array([0, 0, 1, 1])[order], [NAMES[i] for i in order])
    assert np.array_equal(shuffled.at(found.keys).right, found.right)
    assert len(found.at(found.keys[:2])) == 2


def test_several_labels_keep_their_scores(tmp_path):
    save_answers(tmp_path, {"best/val": make_answers(LOGITS, LOGITS > 0.5, NAMES)})
    found = load_answers(tmp_path)["best/val"]
    assert found.several
    assert np.array_equal(found.given, LOGITS)


def test_scores_that_are_close_stay_apart(tmp_path):
    """Rounded scores are ties: the mean average precision of the run would be another one than that of the file."""
    close = np.array([[-8.0], [-8.001]], dtype=np.float32)
    save_answers(tmp_path, {"last/test": make_answers(close, np.array([[True], [False]]), NAMES[:2])})
    assert np.diff(load_answers(tmp_path)["last/test"].given, axis=0)[0, 0] < 0


def test_groups_are_kept_and_older_files_have_none(tmp_path):
    labels = np.array([0, 0, 1, 1])
    save_answers(tmp_path, {"last/test": make_answers(LOGITS, labels, NAMES, np.array([7, 7, 8, 8]))})
    found = load_answers(tmp_path)["last/test"]
    assert found.at(found.keys[::-1]).groups.tolist() == [8, 8, 7, 7]
    with np.load(tmp_path / "answers.npz") as columns:
        older = {name: columns[name] for name in columns.files if not name.endswith("groups")}
    np.savez(tmp_path / "answers.npz", **older)
    assert len(set(load_answers(tmp_path)["last/test"].groups.tolist())) == 4


def test_a_damaged_file_is_named(tmp_path):
    save_answers(tmp_path, {"last/test": make_answers(LOGITS, np.array([0, 0, 1, 1]), NAMES)})
    path = tmp_path / "answers.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match="damaged"):
        load_answers(tmp_path)


def test_a_folder_without_them(tmp_path):
    with pytest.raises(UserError, match=r"no answers.npz"):
        load_answers(tmp_path)
