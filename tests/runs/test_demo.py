"""`vitling demo`: random start against IDMM on the embedded digits. The few epochs here do not show which is better."""

from __future__ import annotations

import signal

import pytest

from tests.made_runs import lines, read, refused
from vitling.cli import run
from vitling.commands.demo import print_demo
from vitling.evaluation.watching import KnnWatcher
from vitling.runs.demo import RUNS


def demo(out, *flags, epochs=2) -> int:
    return run(["demo", "--out", str(out), "--epochs", str(epochs), "--pretrain-epochs", str(epochs), *flags])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITLING_CACHE", str(root / "cache"))
        patch.setattr("vitling.runs.demo.report_finished", lambda *args: False)  # it takes seconds
        assert demo(root / "demo") == 0
    return root / "demo"


def results(out):
    return {name: read(out / name / "result.json") for name in RUNS}


def test_both_starts_have_the_same_labels_settings_and_steps(finished):
    found = results(finished)
    assert [found[name]["images"] for name in RUNS] == [100, 1498, 100, 1498]
    assert found["random"]["steps"] == found["idmm"]["steps"] == 4
    first, second = (read(finished / name / "config.json") for name in ("random", "idmm"))
    assert {key for key in first if first[key] != second[key]} == {"out", "from_", "origins"}
    assert second["from_"] == str(finished / "pretrain")
    assert first["views"]["flip"] == read(finished / "pretrain" / "config.json")["views"]["flip"] == 0


def test_pretraining_opens_no_test_digit(finished):
    assert "1398 of the unlabelled pool" in (finished / "pretrain" / "log.txt").read_text()
    opened = [len(lines(path)) for name in RUNS if (path := finished / name / "test-openings.jsonl").exists()]
    assert opened == [1, 1, 1]
    assert not (finished / "pretrain" / "test-openings.jsonl").exists()
    assert all(found["last"]["test"]["n"] == 299 for name, found in results(finished).items() if name != "pretrain")


def test_summary_states_the_measured_difference(finished, tmp_path, capsys):
    found = results(finished)
    for top1, expected in ((0.75, "25.0 points more"), (0.25, "25.0 points less")):
        found["random"]["last"]["test"]["top1"], found["idmm"]["last"]["test"]["top1"] = 0.5, top1
        print_demo(found, str(tmp_path / "demo"))
        shown = capsys.readouterr().out
        assert expected in " ".join(shown.split())
        assert "One seed" in shown
        assert all(str(tmp_path / "demo" / name) in shown for name in RUNS)
        assert "vitling train DATA --out runs/first" in shown
        text = [line for line in shown.splitlines() if str(tmp_path) not in line]
        assert max(map(len, text)) <= 100


@pytest.fixture
def no_report(monkeypatch):
    """Leave out the report, which takes seconds."""
    monkeypatch.setattr("vitling.runs.demo.report_finished", lambda *args: False)


def test_output_fits_on_one_screen(tmp_path, capfd):
    """The runs' own lines are in their log.txt; without a terminal, progress adds a line in ten seconds."""
    assert demo(tmp_path / "demo", epochs=1) == 0
    shown = capfd.readouterr()
    assert len((shown.out + shown.err).splitlines()) <= 25
    assert shown.out.splitlines()[-1] == str(tmp_path / "demo" / "report.html")
    assert '<option value="0">idmm</option>' in (tmp_path / "demo" / "report.html").read_text()
    assert "10 classes" in (tmp_path / "demo" / "random" / "log.txt").read_text()


@pytest.mark.usefixtures("no_report")
def test_earlier_demo_is_not_deleted_without_overwrite(finished, capsys):
    before = results(finished)
    expected = refused(capsys, "demo", "--out", finished, "--epochs", "2", "--pretrain-epochs", "2")
    assert "--resume" in expected
    assert "--overwrite" in expected
    assert demo(finished, "--resume") == 0
    assert results(finished) == before


@pytest.mark.usefixtures("no_report")
def test_stopped_demo_resumes(finished, tmp_path, monkeypatch):
    measure = KnnWatcher.__call__

    def stopped(watcher, moment):
        signal.raise_signal(signal.SIGTERM)
        return measure(watcher, moment)

    monkeypatch.setattr(KnnWatcher, "__call__", stopped)
    assert demo(tmp_path / "demo") == 143
    monkeypatch.setattr(KnnWatcher, "__call__", measure)
    assert not (tmp_path / "demo" / "idmm").exists()
    once = read(tmp_path / "demo" / "random" / "result.json")
    assert demo(tmp_path / "demo", "--resume") == 0
    again, straight = results(tmp_path / "demo"), results(finished)
    assert again["random"] == once
    assert [again[name]["last"]["test"] for name in ("idmm", "all-labels")] == [
        straight[name]["last"]["test"] for name in ("idmm", "all-labels")
    ]


@pytest.mark.usefixtures("no_report")
def test_overwrite_starts_again_with_other_labels(finished, tmp_path):
    assert demo(tmp_path / "demo", epochs=1) == 0
    assert demo(tmp_path / "demo", "--overwrite", "--seed", "1", epochs=1) == 0
    first, second = (read(out / "random" / "config.json")["source"] for out in (finished, tmp_path / "demo"))
    assert (first, second) == ("embedded:digits?labels=100&seed=0", "embedded:digits?labels=100&seed=1")
