"""A small study from start to end: it runs, skips, resumes, fails, merges, and prints."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.made_runs import read
from vitling.commands.reproduce import print_study
from vitling.data import open as open_data
from vitling.data.content import hash_content
from vitling.errors import Interrupted, RunAborted, UserError
from vitling.methods.supervised.settings import SupervisedConfig
from vitling.papers import locations as datasets
from vitling.papers.costs import OverheadTask
from vitling.papers.ledger import Ledger
from vitling.papers.reproduce import reproduce
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.papers.train_task import TrainTask
from vitling.runs import labelled
from vitling.runs import train as training
from vitling.settings.config import TrainConfig
from vitling.training.config import LoopConfig
from vitling.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("elsewhere")

TINY = TrainConfig(
    method="supervised",
    backbone="vit_micro_patch4_32",
    size=8,
    epochs=2,
    batch=32,
    val="none",
    objective=SupervisedConfig(drop_path=0.0),
    loop=LoopConfig(device="cpu", trackers=()),
)
TRAINED = Study(
    "tiny",
    "two runs",
    "nowhere Table 1",
    (
        StudyRun("plain", TrainTask(TINY), "made", paper=50.0),
        StudyRun(
            "aux", TrainTask(replace(TINY, aux="drloc"), watch=1), "made", paper=60.0, baseline="plain", note="a note"
        ),
    ),
)


@dataclass(frozen=True)
class Given:
    """Work that gives one number after the other, or raises what is in their place."""

    values: list[Any]

    @property
    def settings(self) -> dict[str, Any]:
        return {"given": "numbers"}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        value = self.values.pop(0)
        if isinstance(value, BaseException):
            raise value
        return {"value": value}


def study_of(**works: list[Any]) -> Study:
    return Study("given", "numbers", "nowhere", tuple(StudyRun(name, Given(values)) for name, values in works.items()))


def test_a_study_runs_once(data, tmp_path, capsys, monkeypatch):
    outcome = reproduce(TRAINED, data, seeds=2)
    assert outcome.failed == ()
    written = read(tmp_path / "results" / "tiny.json")
    assert written == json.loads(json.dumps(outcome.results))
    order = [("plain", 0), ("plain", 1), ("aux", 0), ("aux", 1)]
    assert [(row["run"], row["seed"]) for row in written["rows"]] == order
    row = written["rows"][2]
    assert 0 <= row["value"] <= 100
    assert row["minutes"] > 0
    assert (row["epochs"], row["images"]) == (2, 12)
    assert (row["environment"]["commit"], row["environment"]["gpu"]) == ("abc123", None)
    assert "torch" in row["environment"]["packages"]
    assert "command" not in row["environment"]
    assert row["curves"].keys() == {"loss", "classification", "drloc", "top1"}
    assert all(curve["epoch"] == [1, 2] for curve in row["curves"].values())
    assert row["data_hashes"] == {
        split: hash_content(open_data(f"train={data}/made/{split}", val="none").train) for split in ("train", "test")
    }
    assert row["curves"]["top1"]["value"][-1] == row["value"]
    assert written["runs"][1]["settings"]["aux"] == "drloc"
    assert written["command"] == "vitling reproduce tiny --data DIR --seeds 2"
    assert "caution" not in row

    run = tmp_path / "runs" / "tiny" / "aux-seed1"
    assert (run / "result.json").exists()
    assert list((run / "checkpoints").iterdir()) == []
    assert "every 1 epochs" in (run / "test-openings.jsonl").read_text()

    print_study(outcome.results)
    shown = " ".join(capsys.readouterr().out.split())
    assert "(2 seeds)" in shown
    assert "+10.00" in shown
    assert "reaches" in shown

    monkeypatch.setattr(training, "train", lambda config: pytest.fail("nothing is to be done"))
    assert reproduce(TRAINED, data, seeds=2).results == outcome.results
    assert reproduce(TRAINED).results == outcome.results  # nothing lacks, so no data are wanted


def test_where_the_directories_are_gone_the_file_is_enough_and_the_other_way_round(data, tmp_path, capsys):
    one = replace(TRAINED, runs=TRAINED.runs[:1])
    before = reproduce(one, data).results
    (tmp_path / "runs").rename(tmp_path / "kept")
    assert reproduce(one, data).results == before
    assert not (tmp_path / "runs").exists()
    (tmp_path / "results" / "tiny.json").unlink()
    again = reproduce(one, data, runs_out="kept/tiny").results
    assert again["rows"][0]["value"] == before["rows"][0]["value"]
    assert "nothing to resume" in capsys.readouterr().err


def test_an_interrupted_run_goes_on(data, tmp_path, monkeypatch):
    one = replace(TRAINED, runs=TRAINED.runs[:1])
    conclude = labelled._evaluate_and_save

    def stop(*arguments):
        raise Interrupted("Stopped at step 2 of 2", 143)

    monkeypatch.setattr(labelled, "_evaluate_and_save", stop)
    with pytest.raises(Interrupted):
        reproduce(one, data)
    (stopped,) = read(tmp_path / "results" / "tiny.json")["rows"]
    assert "value" not in stopped
    monkeypatch.setattr(labelled, "_evaluate_and_save", conclude)
    (row,) = reproduce(one, data).results["rows"]
    assert "value" in row
    assert "stopped" not in row
    assert row["minutes"] >= stopped["minutes"]
    assert "Resuming at step 2" in (tmp_path / "runs" / "tiny" / "plain-seed0" / "log.txt").read_text()


def test_the_command_names_the_runs_that_are_there(tmp_path):
    works = {
        f"{net}-{data}-{loss}": [1.0] for net in ("swin-t", "cvt-13") for data in ("a", "b") for loss in ("base", "aux")
    }
    study = study_of(**works)

    def command(*only: str) -> str:
        (tmp_path / "results" / "given.json").unlink(missing_ok=True)
        for values in works.values():
            values[:] = [1.0]
        return reproduce(study, only=only).results["command"]

    assert command() == "vitling reproduce given --seeds 1"  # it wants no data
    assert command("swin") == "vitling reproduce given --only swin-t --seeds 1"
    assert command("a-base") == "vitling reproduce given --only a-base --seeds 1"
    assert command("swin-t-a", "cvt-13-b-aux") == "vitling reproduce given --only swin-t-a cvt-13-b-aux --seeds 1"
    assert len({command(*name.split()) for name in works}) == len(works)


def test_a_name_within_another_is_named_nonetheless(tmp_path):
    outcome = reproduce(study_of(tiny=[1.0], **{"tiny-paper": [2.0]}), only=("tiny-paper",))
    assert outcome.results["command"].endswith("--only tiny-paper --seeds 1")


def test_a_run_whose_name_is_part_of_anothers_can_be_named_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = reproduce(study_of(tiny=[1.0], **{"tiny-paper": [2.0]}), only=("=tiny",))
    assert [row["run"] for row in outcome.results["rows"]] == ["tiny"]
    assert outcome.results["command"].endswith("--only =tiny --seeds 1")


def test_a_trial_is_kept_apart(data, tmp_path):
    one = replace(TRAINED, runs=TRAINED.runs[:1])
    outcome = reproduce(one, data, epochs=1)
    assert outcome.path.parts[0] == "runs"
    assert (outcome.results["trial"], outcome.results["rows"][0]["epochs"]) == (1, 1)
    assert not (tmp_path / "results" / "tiny.json").exists()
    with pytest.raises(UserError, match=r"trial of 1 epoch\."):
        reproduce(one, data, out=str(outcome.path))


def test_a_failure_is_written_down_without_the_folders_of_this_machine(tmp_path, capsys):
    runs = tmp_path / "runs"
    problem = RunAborted(f"No space left for {runs / 'first-seed0' / 'checkpoints'}.")
    outcome = reproduce(study_of(first=[problem]), runs_out=str(runs))
    assert outcome.results["rows"][0]["failed"] == "No space left for first-seed0/checkpoints."
    assert str(runs) in capsys.readouterr().err  # here it is of use


def test_a_failure_is_written_down_and_the_others_go_on(tmp_path):
    works = study_of(first=[RunAborted("not finite"), 7.0], second=[RuntimeError("odd\nthings"), 8.0], third=[9.0])
    outcome = reproduce(works)
    assert outcome.failed == ("first, seed 0", "second, seed 0")
    failed = {row["run"]: row.get("failed") for row in outcome.results["rows"]}
    assert failed == {"first": "not finite", "second": "RuntimeError: odd", "third": None}
    again = reproduce(works)
    assert again.failed == ()
    assert [row["value"] for row in again.results["rows"]] == [7.0, 8.0, 9.0]


def test_the_exit_code_of_a_failure(monkeypatch, capsys):
    from vitling.cli import run

    monkeypatch.setattr("vitling.papers.studies.find_study", lambda name: study_of(bad=[RunAborted("no")], good=[1.0]))
    assert run(["reproduce", "given"]) == 3
    captured = capsys.readouterr()
    assert "failed: no" in captured.out
    assert "bad, seed 0" in captured.err


def test_a_matrix_is_drawn(monkeypatch, capsys, tmp_path):
    from vitling.cli import run

    runs = (
        StudyRun("first", Given([1.0]), cell=("a", "x")),
        StudyRun("second", Given([RunAborted("no")]), cell=("a", "y")),
    )
    study = Study("matrix", "two cells", "nowhere", runs, picture="heatmap")
    monkeypatch.setattr("vitling.papers.studies.find_study", lambda name: study)
    assert run(["reproduce", "matrix"]) == 3
    assert "Saved to results/matrix.json and results/matrix.png" in capsys.readouterr().out
    assert (tmp_path / "results" / "matrix.png").exists()


def test_rows_of_other_sessions_stay(tmp_path):
    reproduce(study_of(first=[1.0]))
    outcome = reproduce(study_of(first=[2.0, 3.0], second=[4.0]), seeds=2, only=("first",))
    assert [(r["seed"], r["value"]) for r in outcome.results["rows"]] == [(0, 1.0), (1, 2.0)]
    outcome = reproduce(study_of(second=[4.0]))
    assert [r["value"] for r in outcome.results["rows"]] == [4.0, 1.0, 2.0]  # a run that is no more comes last


def test_other_settings_than_before_are_said(capsys):
    reproduce(study_of(first=[1.0]))
    changed = Study("given", "numbers", "nowhere", (StudyRun("first", OverheadTask("vit_micro_patch4_32", 4)),))
    outcome = reproduce(changed)
    assert "with different settings" in capsys.readouterr().err
    print_study(outcome.results)
    assert "settings that differ" in " ".join(capsys.readouterr().out.split())


def test_time_runs_out(capsys):
    outcome = reproduce(study_of(first=[1.0], second=[2.0]), minutes=0)
    assert outcome.results["rows"] == []
    assert "2 runs are left" in capsys.readouterr().err


def test_missing_data_skip_their_runs(data, capsys, tmp_path):
    both = replace(TRAINED, runs=(*TRAINED.runs[:1], replace(TRAINED.runs[1], data="svhn")))
    assert [row["run"] for row in reproduce(both, data).results["rows"]] == ["plain"]
    said = capsys.readouterr().err
    assert "1 of 2 runs are skipped" in said
    assert "svhn-train.tar" in said
    with pytest.raises(UserError, match="Nothing can run"):
        reproduce(both, data, only=("aux",))
    weights = replace(TRAINED, runs=(replace(TRAINED.runs[1], weights="t2t_vit_14"),))
    with pytest.raises(UserError, match=r"weights/t2t_vit_14\.safetensors"):
        reproduce(weights, data)


def test_fewer_images_than_the_paper_are_said(data, monkeypatch):
    monkeypatch.setitem(datasets.DATASETS, "made", datasets.StudyDataset("made images", 1000, 6))
    (row,) = reproduce(replace(TRAINED, runs=TRAINED.runs[:1]), data).results["rows"]
    assert row["caution"] == "12 training images, not 1,000"


def test_passes_for_want_of_memory_are_said(data, monkeypatch):
    monkeypatch.setitem(datasets.DATASETS, "made", datasets.StudyDataset("made images", 1000, 6))
    step, tried = Trainer._take_step, []

    def short_of_memory(self, key, micro_batches):
        tried.append(len(micro_batches))
        if len(micro_batches) < 2:
            raise torch.OutOfMemoryError
        return step(self, key, micro_batches)

    monkeypatch.setattr(Trainer, "_take_step", short_of_memory)
    (row,) = reproduce(replace(TRAINED, runs=TRAINED.runs[:1]), data).results["rows"]
    assert set(tried) == {1, 2}
    assert row["caution"] == "each batch in 2 passes, for want of memory; 12 training images, not 1,000"


def test_wrong_input(data, tmp_path):
    for settings, said in (
        ({"only": ("nobody",)}, "nobody"),
        ({"seeds": 0}, "--seeds"),
        ({"data": None}, "--data DIR"),
        ({"data": "no/such"}, "does not exist"),
    ):
        with pytest.raises(UserError, match=said):
            reproduce(TRAINED, **({"data": data} | settings))


def test_the_overhead_is_measured(monkeypatch, tmp_path):
    from vitling.papers import measure

    monkeypatch.setattr(measure, "ROUNDS", 2)
    monkeypatch.setattr(measure, "STEPS", 2)
    task = OverheadTask("vit_micro_patch4_32", 4, size=16)
    row = task(RunContext(tmp_path / "run"))
    assert {"value", "seconds", "step_without", "step_l1", "peak_gb_without", "peak_gb_l1"} == set(row)
    assert row["value"] == pytest.approx(100 * (row["step_l1"] / row["step_without"] - 1), abs=0.01)
    assert task(RunContext(tmp_path / "run")) == row  # from its result.json


def test_two_processes_may_write_one_file(tmp_path):
    """A writer keeps the rows that others added since it last read the file."""
    study = Study("many", "many runs", "nowhere", tuple(StudyRun(f"run{i}", Given([])) for i in range(24)))
    path = tmp_path / "results" / "many.json"

    def write(part: int) -> None:
        ledger = Ledger(path, study, None)
        for i in range(part, 24, 4):
            ledger.record({"run": f"run{i}", "seed": 0, "value": i, "minutes": 1.0, "fingerprint": ""})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [row["value"] for row in read(path)["rows"]] == list(range(24))


def test_of_several_starts_a_row_has_the_most_that_ran_at_once(tmp_path):
    ledger = Ledger(tmp_path / "some.json", Study("some", "some runs", "nowhere", (StudyRun("a", Given([])),)), None)
    row = {"run": "a", "seed": 0, "minutes": 1.0, "fingerprint": ""}
    ledger.record(row | {"stopped": "early", "at_once": 3})
    ledger.record(row | {"value": 1.0})
    (found,) = ledger.rows().values()
    assert (found["minutes"], found["at_once"]) == (2.0, 3)


@dataclass(frozen=True)
class Interrupting:
    """Work that a Ctrl-C finds where any error would be taken for that of a damaged file."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"interrupts": "itself"}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except Exception:
            return {"value": 0.0}
        return {"value": 1.0}


def test_a_signal_between_trainings_ends_the_study():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stop:
        reproduce(Study("rude", "one run", "nowhere", (StudyRun("a", Interrupting()),)))
    assert stop.value.exit_code == 130
    assert [row.keys() & {"value", "stopped"} for row in read(Path("results/rude.json"))["rows"]] == [{"stopped"}]
    assert signal.getsignal(signal.SIGINT) is before
