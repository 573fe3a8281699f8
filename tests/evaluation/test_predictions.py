"""Saved predictions are the same when loaded, and are found by image in any order."""

from __future__ import annotations

import numpy as np
import pytest

from vitling.errors import UserError
from vitling.evaluation.predictions import load_predictions, make_predictions, save_predictions

NAMES = ["a/1.png", "a/2.png", "b/1.png", "b/2.png"]
LOGITS = np.array([[2.0, 1.0], [0.0, 1.0], [0.0, 3.0], [5.0, 1.0]], dtype=np.float32)


def test_single_label_predictions(tmp_path):
    save_predictions(tmp_path, {"last/test": make_predictions(LOGITS, np.array([0, 0, 1, 1]), NAMES)})
    found = load_predictions(tmp_path)["last/test"]
    assert found.correct.tolist() == [True, False, True, False]
    assert not found.is_multi_label
    order = [2, 0, 3, 1]
    shuffled = make_predictions(LOGITS[order], np.array([0, 0, 1, 1])[order], [NAMES[i] for i in order])
    assert np.array_equal(shuffled.select(found.keys).correct, found.correct)
    assert len(found.select(found.keys[:2])) == 2


def test_multi_label_predictions_keep_their_scores(tmp_path):
    save_predictions(tmp_path, {"best/val": make_predictions(LOGITS, LOGITS > 0.5, NAMES)})
    found = load_predictions(tmp_path)["best/val"]
    assert found.is_multi_label
    assert np.array_equal(found.given, LOGITS)


def test_close_scores_stay_distinct(tmp_path):
    """Rounding the scores would make ties, and change the mean average precision."""
    close = np.array([[-8.0], [-8.001]], dtype=np.float32)
    save_predictions(tmp_path, {"last/test": make_predictions(close, np.array([[True], [False]]), NAMES[:2])})
    assert np.diff(load_predictions(tmp_path)["last/test"].given, axis=0)[0, 0] < 0


def test_groups_are_saved_and_optional_in_older_files(tmp_path):
    labels = np.array([0, 0, 1, 1])
    save_predictions(tmp_path, {"last/test": make_predictions(LOGITS, labels, NAMES, np.array([7, 7, 8, 8]))})
    found = load_predictions(tmp_path)["last/test"]
    assert found.select(found.keys[::-1]).groups.tolist() == [8, 8, 7, 7]
    with np.load(tmp_path / "answers.npz") as columns:
        older = {name: columns[name] for name in columns.files if not name.endswith("groups")}
    np.savez(tmp_path / "answers.npz", **older)
    assert len(set(load_predictions(tmp_path)["last/test"].groups.tolist())) == 4


def test_damaged_file_is_reported(tmp_path):
    save_predictions(tmp_path, {"last/test": make_predictions(LOGITS, np.array([0, 0, 1, 1]), NAMES)})
    path = tmp_path / "answers.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match="damaged"):
        load_predictions(tmp_path)


def test_folder_without_predictions_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no answers.npz"):
        load_predictions(tmp_path)
