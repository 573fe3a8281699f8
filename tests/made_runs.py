"""Run the command line in this process, with tiny runs, and read their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import make_folder, make_image
from vitling.cli import run
from vitling.evaluation.predictions import make_predictions, save_predictions

TINY = [
    *("--method", "supervised"),
    *("--size", "8", "--backbone", "vit_micro_patch4_32", "--epochs", "1", "--batch", "32"),
    *("--loop.device", "cpu", "--loop.trackers", "none", "--objective.drop-path", "0", "--no-report"),
]


def train(source: Path | str, out: Path, *flags: str) -> int:
    """Train a tiny network and return the exit code. The last value of a repeated flag wins."""
    return run(["train", str(source), "--out", str(out), *TINY, *flags])


PRETRAIN_TINY = [
    *("--size", "8", "--backbone", "vit_micro_patch4_32", "--batch", "16"),
    *("--loop.device", "cpu", "--loop.trackers", "none", "--no-report"),
]


def pretrain(source: Path | str, out: Path, *flags: str) -> int:
    """Pre-train a tiny network for two epochs and return the exit code."""
    return run(["pretrain", str(source), "--out", str(out), *PRETRAIN_TINY, "--epochs", "2", *flags])


def make_folder_with_pool(root: Path) -> Path:
    """Write 16 images of two classes and five unlabelled ones."""
    folder = make_folder(root, classes=2, each=8)
    (folder / "unlabelled").mkdir()
    for i in range(5):
        make_image(3, i).save(folder / "unlabelled" / f"{i}.png")
    return folder


def make_run_folder(folder: Path) -> Path:
    """Make a folder with the files by which a run is recognised."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "environment.json"):
        (folder / name).write_text("{}")
    return folder


def write_run(folder: Path, right: Any, names: Any = None, split: str = "last/test", labels: Any = None) -> str:
    """Write a run with predictions for three classes that are correct where `right` is true; return its path."""
    make_run_folder(folder)
    labels = np.arange(len(right)) % 3 if labels is None else labels
    logits = np.eye(3)[np.where(right, labels, (labels + 1) % 3)]
    names = names or [f"{i}.png" for i in range(len(right))]
    save_predictions(folder, {split: make_predictions(logits, labels, names)})
    return str(folder)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refused(capsys: Any, *argv: Any) -> str:
    """Return the error message of a command that must end with exit code 2 and without a traceback."""
    capsys.readouterr()
    assert run([str(word) for word in argv]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert len(message) < 2000, len(message)  # a plan may precede it
    return message
