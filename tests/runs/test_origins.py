"""Origins of weights: which runs know the labels of which data."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.conftest import make_folder
from tests.made_runs import pretrain, read, train
from vitling.errors import InvalidFile
from vitling.runs.origins import find_label_free, find_run, is_same_data, knows_labels


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, data) with the runs `labelled`, `free` (pre-trained) and `after` (pre-trained from `labelled`)."""
    root = tmp_path_factory.mktemp("origins")
    source = make_folder(root / "images", each=20, split="train")
    make_folder(source, each=5, split="test", first=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(source, root / "labelled") == 0
        assert pretrain(source, root / "free") == 0
        assert pretrain(source, root / "after", "--from", str(root / "labelled")) == 0
    return root, source


@pytest.mark.parametrize(
    ("start", "known"),
    [("labelled", True), ("labelled/model", True), ("free", False), ("free/model", False), ("after", True)],
)
def test_labels_are_known_by_runs_and_by_those_that_start_from_them(made, start, known):
    root, source = made
    assert knows_labels(str(root / start), str(source)) == known
    assert knows_labels(str(root / start), f"{source}?val=train") == known
    assert not knows_labels(str(root / start), str(root / "other images"))


def test_files_and_random_weights_know_nothing(made, tmp_path):
    root, source = made
    shutil.copy(root / "labelled/model/model.safetensors", tmp_path)
    assert not knows_labels(str(tmp_path / "model.safetensors"), str(source))
    assert not knows_labels(None, str(source))


def test_the_label_free_start_of_a_model_folder_is_found(made, tmp_path):
    root, source = made
    assert train(source, tmp_path / "run", "--from", str(root / "free/model")) == 0
    assert find_label_free(tmp_path / "run", str(source), required=True) == root / "free"


def test_pretraining_after_a_run_that_knows_the_labels_is_not_label_free(made, tmp_path):
    """The labelled run itself started from a run without labels, which is then the one to use."""
    root, source = made
    starts = {"labelled": root / "free", "after": tmp_path / "labelled"}
    for name, start in starts.items():
        config = read(shutil.copytree(root / name, tmp_path / name) / "config.json") | {"from_": str(start)}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    assert find_label_free(tmp_path / "after", str(source), required=True) == root / "free"
    assert find_label_free(root / "after", str(source), required=False) is None


def test_pretraining_after_a_run_with_labels_of_other_data_is_label_free(made):
    root, _ = made
    assert find_label_free(root / "after", "other images", required=True) == root / "after"


def test_a_twin_of_weights_that_know_the_labels_calibrates_nothing(made, tmp_path):
    root, source = made
    assert train(source, tmp_path / "run", "--from", str(root / "labelled")) == 0
    assert read(tmp_path / "run/config.json")["calibrate"] == "on"
    assert read(tmp_path / "run/result.json")["last"]["temperature"] == 1
    assert "was trained on the same labels" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.parametrize("ring", [1, 2])
def test_runs_that_started_from_each_other_are_refused(made, tmp_path, ring):
    """As after renaming runs: runs/b, which started from runs/a, is now runs/a."""
    root, source = made
    runs = [shutil.copytree(root / "free", tmp_path / f"run{i}") for i in range(ring)]
    for i, run in enumerate(runs):
        config = read(run / "config.json") | {"from_": str(runs[i - 1])}
        (run / "config.json").write_text(json.dumps(config))
    for follow in (
        lambda: find_label_free(runs[0], str(source), True),
        lambda: knows_labels(str(runs[0]), str(source)),
    ):
        with pytest.raises(InvalidFile, match="has a ring"):
            follow()


def test_paths_with_a_nul_character_belong_to_no_run():
    assert find_run("x\0y") is None
    assert not is_same_data("x\0y", "images")
    assert is_same_data("x\0y", "x\0y")
