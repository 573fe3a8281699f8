"""--labels in training commands: recorded with a hash, used by every stage, and required unchanged by --resume."""

from __future__ import annotations

import pytest

from tests.made_runs import TINY, read, refused, train
from vitling.cli import run
from vitling.data.sources.corrections import hash_labels

TWO_STAGES = ["--method", "idmm", "--pretrain-epochs", "1", "--pretrain-size", "8", "--val", "none", "--no-report"]


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "corrected.csv"
    path.write_text("path,label\nclass-0/image-00.png,class-1\nclass-0/image-01.png,drop\n")
    return path


def test_both_stages_record_the_file_and_train_on_it(folder, labels, tmp_path):
    out = tmp_path / "run"
    assert train(folder, out, *TWO_STAGES, "--labels", str(labels)) == 0
    for stage in (out, out / "pretrain"):
        config = read(stage / "config.json")
        assert config["labels"] == str(labels)
        assert config["labels_hash"] == hash_labels(str(labels))
    assert read(out / "result.json")["images"] == 29
    assert read(out / "pretrain" / "result.json")["images"] == 29
    assert "1 label changed, 1 image left out" in (out / "log.txt").read_text()


def test_resume_needs_the_same_content(folder, labels, tmp_path, capsys):
    out, content = tmp_path / "run", labels.read_text()
    assert train(folder, out, "--labels", str(labels), "--no-report") == 0
    first = read(out / "result.json")
    (out / "result.json").unlink()
    labels.write_text(content + "class-2/image-00.png,drop\n")
    message = refused(capsys, "train", "--out", out, "--resume")
    assert "has changed since" in message
    labels.unlink()
    assert "cannot be read" in refused(capsys, "train", "--out", out, "--resume")
    labels.write_text(content)
    assert run(["train", "--out", str(out), "--resume", "--no-report"]) == 0
    again = read(out / "result.json")
    assert again["last"] == first["last"]
    assert again["data_hashes"] == first["data_hashes"]


def test_explain_reads_the_labels(folder, labels, tmp_path, capsys):
    labels.write_text("path,label\nnone.png,class-1\n")
    message = refused(capsys, "train", folder, "--out", tmp_path / "run", *TINY, "--labels", labels, "--explain")
    assert "none.png" in message
