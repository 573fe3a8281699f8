"""Results files of runs: columns from result.json and config.json, nothing typed in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.made_runs import read
from vitling.files import write_json

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import collect


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "first"
    write_json(folder / "environment.json", {"command": "vitling train /home/me/x", "commit": "abc", "gpu": None})
    result = {"epochs": 3, "last": {"test": {"top1": 0.5}}, "data_hashes": {"train": "1f", "test": "2f"}}
    write_json(folder / "result.json", result)
    write_json(folder / "config.json", {"epochs": 0, "optim": {"lr": 0.1}})
    write_json(folder / "pretrain" / "result.json", {"last": {"knn/top1": 0.25}})
    return folder


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["collect.py", *map(str, words), "--what", "runs", "--command", "vitling train"])
    collect.main()


def test_columns_come_from_the_run(run, tmp_path, monkeypatch):
    columns = ["epochs", "optim.lr", "last.test.top1", "pretrain/last.knn/top1"]
    call(monkeypatch, run, "--out", tmp_path / "out.json", "--columns", *columns)
    written = read(tmp_path / "out.json")
    values = {"epochs": 3, "optim.lr": 0.1, "last.test.top1": 0.5, "pretrain/last.knn/top1": 0.25}
    assert written["rows"] == [{"run": "first", **values, "commit": "abc"}]
    assert written["data_hashes"] == {"train": "1f", "test": "2f"}
    assert written["environment"] == {"commit": "abc", "gpu": None}  # the command names local folders


def test_one_run_is_kept_whole(run, tmp_path, monkeypatch):
    call(monkeypatch, run, "--out", tmp_path / "out.json")
    assert read(tmp_path / "out.json")["result"] == read(run / "result.json")


def test_unknown_columns_are_refused(run):
    with pytest.raises(SystemExit, match=r"has no optim\.rate"):
        collect.find_value(run, "optim.rate")
