"""`vitling report`: what it collects from run directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import make_folder
from tests.made_runs import read, refused, train
from vitling.cli import run
from vitling.runs.report import collect, shorten_names
from vitling.runs.report_files import open_files


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Train for two epochs, with a hold-out."""
    root = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        assert train(make_folder(root / "images"), root / "run", "--val", "0.3", "--epochs", "2") == 0
    return root / "run"


def test_scores_settings_and_curves_are_those_of_the_files(finished):
    found, result = collect(open_files("first", finished)), read(finished / "result.json")
    assert found.headline.value == result["last"]["val"]["top1"]
    assert found.headline.images == result["last"]["val"]["n"] == 9
    assert found.headline.interval[0] <= found.headline.value <= found.headline.interval[1]
    assert [score.weights for score in found.scores] == ["last epoch", "best epoch on val"]
    origins = {setting.flag: setting.origin for stage in found.stages for setting in stage.settings}
    assert origins["epochs"] == "explicit"
    assert "idmm.smoothing" not in origins
    curves = {curve.name: curve for curve in found.curves}
    assert curves["loss"].epochs == (1, 2)
    assert curves["val/top1"].values[-1] == result["last"]["val"]["top1"]
    assert found.class_names == ("class-0", "class-1", "class-2")
    assert sum(map(sum, found.errors.confusion)) == 9
    assert json.loads(found.origin.config) == read(finished / "config.json")


def test_command_writes_the_page(finished, tmp_path, capsys):
    assert run(["report", str(finished), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"Saved to {tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_unfinished_and_other_folders_are_refused(finished, tmp_path, capsys):
    assert "is not a run" in refused(capsys, "report", tmp_path)
    (tmp_path / "half").mkdir()
    for name in ("config.json", "environment.json"):
        (tmp_path / "half" / name).write_bytes((finished / name).read_bytes())
    assert "has not finished" in refused(capsys, "report", tmp_path / "half")
    (tmp_path / "half" / "result.json").write_text("[")
    assert "not valid JSON" in refused(capsys, "report", tmp_path / "half")


def test_names_are_short_and_different(tmp_path):
    a, b = tmp_path / "x" / "run", tmp_path / "y" / "run"
    assert shorten_names([a, b]) == ["x/run", "y/run"]
    assert shorten_names([a]) == [str(a)]
