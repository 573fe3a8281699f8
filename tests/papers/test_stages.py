"""Runs of several stages: what is shared is trained once, what was stopped goes on, and the time adds up."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pages.results import render_results
from tests.conftest import make_folder
from tests.made_runs import read
from tests.papers.short_stages import FIRST, SECOND
from vitling.cli import run
from vitling.commands.reproduce import print_study
from vitling.errors import Interrupted, UserError
from vitling.files import write_json
from vitling.papers.counting import CountTask
from vitling.papers.reproduce import reproduce
from vitling.papers.stages import FinetuneTask
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.runs import finetune as finetune_config
from vitling.runs import labelled
from vitling.runs import pretrain as pretrain_config

pytestmark = pytest.mark.usefixtures("elsewhere")

THIRD = replace(SECOND, size=16, epochs=1, keep_head=True)

IDMM = StudyRun("idmm", FinetuneTask(SECOND, FIRST), "made", paper=60.0, baseline="random")
STUDY = Study(
    "staged",
    "three runs",
    "nowhere Table 3",
    (
        StudyRun("random", FinetuneTask(SECOND), "made", paper=50.0),
        IDMM,
        StudyRun("larger", FinetuneTask(SECOND, FIRST, THIRD), "made", paper=70.0, baseline="idmm", note="a note"),
    ),
)
ONE = replace(STUDY, runs=(IDMM,))
FIGURES = {"size": 8, "images": 12, "epochs": 2, "seconds": 1, "images_per_second": 9.0}
RESULT = {**FIGURES, "backbone": "made", "seed": 0, "accumulate": 1, "last": {}}  # the least that result.json has


@pytest.fixture
def trained(monkeypatch):
    """The stages that are trained, as they come."""
    calls: list[str] = []

    def format_count(module, name):
        function = getattr(module, name)

        def call(config):
            calls.append(Path(config.out).name.partition("-")[0])
            return function(config)

        monkeypatch.setattr(module, name, call)

    format_count(pretrain_config, "pretrain")
    format_count(finetune_config, "finetune_from_any_start")
    return calls


def list_stages(row) -> list[tuple[str, bool]]:
    return [(stage["stage"], stage["shared"]) for stage in row["stages"]]


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be locked")
def test_two_processes_train_a_stage_once(tmp_path, monkeypatch, capsys):
    """Threads here: each opens the folder by itself, and the lock is the opener's."""
    trained = []

    def slowly(config):
        time.sleep(0.5)
        trained.append(config.out)
        write_json(Path(config.out) / "result.json", result := RESULT | {"seconds": len(trained)})
        return result

    monkeypatch.setattr(finetune_config, "finetune_from_any_start", slowly)
    (stage,) = FinetuneTask(SECOND).stages(RunContext(tmp_path / "run", data="made", stages=tmp_path / "stages"))
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(stage, (tmp_path / "one", tmp_path / "other")))
    assert len(trained) == 1
    assert [found for found, _ in results] == [RESULT] * 2
    assert sorted(shared for _, shared in results) == [False, True]
    assert f"another process that trains {stage.out.name}" in capsys.readouterr().err


def test_what_two_runs_share_is_trained_once(data, tmp_path, trained, capsys):
    outcome = reproduce(STUDY, data)
    assert outcome.failed == ()
    assert trained == ["finetune", "pretrain", "finetune", "enlarge"]
    random, idmm, larger = outcome.results["rows"]
    assert list_stages(random) == [("finetune", False)]
    assert list_stages(idmm) == [("pretrain", False), ("finetune", False)]
    assert list_stages(larger) == [("pretrain", True), ("finetune", True), ("enlarge", False)]
    assert [stage["folder"] for stage in larger["stages"][:2]] == [stage["folder"] for stage in idmm["stages"]]
    assert [(stage["epochs"], stage["size"], stage["images"]) for stage in larger["stages"]] == [
        *((3, 8, 12), (2, 8, 12), (1, 16, 12))
    ]

    for row in outcome.results["rows"]:
        folders = [tmp_path / "runs" / "stages" / stage["folder"] for stage in row["stages"]]
        results = [read(folder / "result.json") for folder in folders]
        assert row["seconds"] == pytest.approx(sum(result["seconds"] for result in results), abs=0.01)
        assert row["value"] == pytest.approx(100 * results[-1]["last"]["test"]["top1"], abs=1e-3)
        assert all((folder / "model" / "model.safetensors").exists() for folder in folders)
        assert not any(any((folder / "checkpoints").iterdir()) for folder in folders)
        assert row["environment"]["commit"] == row["stages"][0]["commit"] == "abc123"
        assert "caution" not in row
        assert row["data_hashes"] == results[-1]["data_hashes"]
        assert row["data_hashes"].keys() == {"train", "test"}
        for stage, result in zip(row["stages"], results):
            assert stage["curves"]["loss"]["epoch"] == list(range(1, result["epochs"] + 1))
            assert stage["curves"]["loss"]["value"][-1] == pytest.approx(stage["terms"]["loss"], abs=1e-3)
    pre, fine, large = folders
    assert ",test=" not in read(pre / "config.json")["source"]  # pre-training does not know the test images
    assert {"global", "local", "loss"} <= larger["stages"][0]["terms"].keys()
    assert 0 <= larger["stages"][0]["knn"] <= 100
    assert read(fine / "config.json")["from_"] == str(pre.relative_to(tmp_path))
    assert read(large / "config.json")["from_"] == str(fine.relative_to(tmp_path))
    assert (read(large / "config.json")["keep_head"], read(large / "config.json")["size"]) == (True, 16)
    assert "Started from" in (fine / "log.txt").read_text()

    said = " ".join(capsys.readouterr().err.split())
    assert f"Stage 1 of 3, pretrain: runs/stages/{pre.name} has finished already." in said
    print_study(outcome.results)
    shown = " ".join(capsys.readouterr().out.split())
    assert "+10.00" in shown
    assert "shared with other runs (pretrain and finetune)" in shown
    text = render_results(tmp_path / "results")
    assert "## staged: three runs" in text
    assert "3 of 3 runs" in text
    assert "a note; " in text


def test_another_study_shares_too_and_other_settings_do_not(data, trained):
    reproduce(ONE, data)
    other = Study(
        "other", "one run", "nowhere", (StudyRun("again", FinetuneTask(replace(SECOND, epochs=1), FIRST), "made"),)
    )
    (row,) = reproduce(other, data).results["rows"]
    assert list_stages(row) == [("pretrain", True), ("finetune", False)]
    assert trained == ["pretrain", "finetune", "finetune"]
    changed = StudyRun("changed", FinetuneTask(SECOND, replace(FIRST, epochs=2)), "made")
    (*_, row) = reproduce(replace(other, runs=(*other.runs, changed)), data, seeds=1).results["rows"]
    assert list_stages(row) == [("pretrain", False), ("finetune", False)]


def test_another_folder_for_runs_has_its_own_stages(data, tmp_path, trained):
    reproduce(ONE, data, runs_out="here")
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"idmm-seed0", "stages"}
    reproduce(replace(ONE, name="other"), data, runs_out="here")  # the same run, of another study
    assert trained == ["pretrain", "finetune"]
    other_stages = replace(IDMM, task=FinetuneTask(SECOND))  # under the same name
    different = replace(ONE, name="third", runs=(other_stages,))
    (row,) = reproduce(different, data, runs_out="here").results["rows"]
    assert list_stages(row) == [("finetune", False)]


def test_a_finished_run_needs_its_stages_no_more(data, tmp_path, trained):
    (before,) = reproduce(ONE, data).results["rows"]
    shutil.rmtree(tmp_path / "runs" / "stages")
    (tmp_path / "results" / "staged.json").unlink()
    (again,) = reproduce(ONE, data).results["rows"]
    assert trained == ["pretrain", "finetune"]
    assert (again["value"], again["stages"]) == (before["value"], before["stages"])
    assert again["minutes"] == pytest.approx(before["seconds"] / 60, abs=1e-3)


@pytest.mark.parametrize(("module", "kind"), [(pretrain_config, "pretrain"), (labelled, "finetune")])
def test_an_interrupted_stage_goes_on(data, tmp_path, monkeypatch, trained, module, kind):
    conclude = module._evaluate_and_save

    def stop(*arguments):
        raise Interrupted("Stopped at the end", 143)

    monkeypatch.setattr(module, "_evaluate_and_save", stop)
    with pytest.raises(Interrupted):
        reproduce(ONE, data)
    monkeypatch.setattr(module, "_evaluate_and_save", conclude)
    (row,) = reproduce(ONE, data).results["rows"]
    assert list_stages(row) == [("pretrain", False), ("finetune", False)]  # its own, of two starts
    assert trained == sorted([*("pretrain", "finetune"), kind], reverse=True)
    (folder,) = (tmp_path / "runs" / "stages").glob(f"{kind}-*")
    assert "Resuming at step" in (folder / "log.txt").read_text()


def test_a_trial_shortens_every_stage(data, tmp_path):
    (*_, row) = reproduce(STUDY, data, epochs=1, only=("larger",)).results["rows"]
    assert [stage["epochs"] for stage in row["stages"]] == [1, 1, 1]
    assert not (tmp_path / "results").exists()


def folders(task: FinetuneTask, **context) -> list[str]:
    return [
        stage.out.name for stage in task.stages(RunContext(Path("run"), data="made", train="a", test="b", **context))
    ]


def test_the_seed_may_be_of_one_stage():
    task = FinetuneTask(SECOND, FIRST)
    first, again = (folders(replace(task, seeded="pretrain"), seed=seed) for seed in (0, 2))
    assert all("-seed0-" in name for name in first)
    assert first == folders(task)
    assert ["-seed2-" in name for name in again] == [True, False]
    assert first[1] != again[1]  # the same seed, but from another network
    other = folders(replace(task, seeded="finetune"), seed=2)
    assert ["-seed2-" in name for name in other] == [False, True]
    assert other[0] == first[0]


def test_a_stage_is_known_by_what_it_starts_from():
    task = FinetuneTask(SECOND)
    assert len({*folders(task), *folders(task, weights="weights/a.pth"), *folders(task, weights="weights/b.pth")}) == 3
    assert folders(task, weights="here/a.pth") == folders(task, weights="there/a.pth")
    assert folders(task, epochs=1) != folders(task)


def test_pre_training_on_other_images(data, tmp_path, trained):
    runs = (StudyRun("before", IDMM.task, "made", pretrain_data="pool"),)
    with pytest.raises(UserError, match=r"pool \(images to pre-train on, 6 images\).*pool-train.tar"):
        reproduce(replace(STUDY, runs=runs), data)
    make_folder(tmp_path / "data" / "pool", classes=3, each=3, split="train", first=20)
    (row,) = reproduce(replace(STUDY, runs=runs), data).results["rows"]
    assert row["stages"][0]["folder"].startswith("pretrain-vit_nano_patch4_32-pool-seed0-")
    assert [stage["images"] for stage in row["stages"]] == [9, 12]
    assert row["caution"] == "9 images to pre-train on, not 6"


def test_images_and_classes_are_counted(data, capsys):
    runs = tuple(
        StudyRun(f"made-{split}", CountTask(split, classes), "made", paper=paper)
        for split, classes, paper in (("train", 3, 12), ("test", 4, 1000))
    )
    outcome = reproduce(Study("counts", "the datasets", "nowhere Table 1", runs, "images"), data)
    assert [(row["value"], row["classes"]) for row in outcome.results["rows"]] == [(12, 3), (6, 3)]
    print_study(outcome.results)
    shown = capsys.readouterr().out
    assert "1,000" in shown
    assert "seed" not in shown
    assert "made-test: caution: 3 classes, not 4" in shown


def test_from_the_command_line(data, capsys, monkeypatch):
    monkeypatch.setattr("vitling.papers.studies.find_study", lambda name: STUDY)
    assert run(["reproduce", "staged", "--data", data, "--only", "idmm", "--epochs", "1"]) == 0
    captured = capsys.readouterr()
    assert "a trial of 1 epoch\n" in captured.out
    assert "Run 1 of 1: idmm, seed 0." in captured.err
    assert "Stage 2 of 2, finetune: runs/stages/finetune-vit_nano_patch4_32-made-seed0-" in captured.err
