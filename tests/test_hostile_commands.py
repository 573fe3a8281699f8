"""Damaged files given to real commands, in processes of their own: exit code 2, one message, no traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import make_folder
from tests.data.test_hostile_sources import make_intact_parquet
from tests.made_runs import train


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with images/ and run/, a trained network."""
    root = tmp_path_factory.mktemp("made")
    make_folder(root / "images", classes=3, each=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(root / "images", root / "run", "--val", "0.3") == 0
    (root / "a.parquet").write_bytes(make_intact_parquet())
    return root


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def fill(text: str) -> Callable[[Path], None]:
    return lambda path: (path.write_text(text), None)[1]


CASES = [
    ("a.parquet", cut, ["inspect", "a.parquet"]),
    ("run/result.json", fill('{"last": ' + "[" * 5000), ["report", "run"]),
    ("run/config.json", fill('{"epochs": NaN, "checkpoint": [], "loop": 1}'), ["train", "--out", "run", "--resume"]),
    (
        "run/model/config.json",
        fill('{"vitling": {"size": -1}, "architecture": "hf-hub:a/b"}'),
        ["embed", "run", "images", "--out", "features.npz"],
    ),
    ("run/model/trust.safetensors", cut, ["predict", "run", "images"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_damaged_file_ends_a_command_with_one_message(made, tmp_path, name, damage, words):
    shutil.copytree(made, tmp_path / "here")
    damage(tmp_path / "here" / name)
    before = sorted((tmp_path / "here").rglob("*"))
    command = [sys.executable, "-m", "vitling", *words]
    ended = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert Path(name).name in ended.stderr.replace("\n", "")
    assert len(ended.stderr) < 1500
    assert sorted((tmp_path / "here").rglob("*")) == before  # nothing is written
