"""Networks that are trained no further: their figures, what is shared, what is asked once."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from benchmarks.pages.results import render_results
from tests.conftest import make_folder
from tests.made_runs import lines, read
from tests.papers.short_stages import FIRST
from vitling.data import open as open_data
from vitling.data.content import hash_content
from vitling.errors import RunAborted, UserError
from vitling.evaluation import collapse
from vitling.evaluation.bundle import load
from vitling.evaluation.correspondence import measure_correspondence
from vitling.evaluation.inputs import list_sources
from vitling.files import write_json
from vitling.papers import costs, probing
from vitling.papers import locations as datasets
from vitling.papers.datasets import ENTRIES
from vitling.papers.probing import FixedNetwork, FrozenTask, SuiteMeanTask
from vitling.papers.reproduce import reproduce
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.runs import pretrain as pretrain_config
from vitling.runs.probes import evaluate_probes
from vitling.settings.evaluation import EvaluationConfig

pytestmark = pytest.mark.usefixtures("elsewhere")

RANDOM = FixedNetwork("vit_nano_patch4_32", 8)
FIGURES = ("knn", "linear", "logistic", "correspondence", "distance", "matching")
STUDY = Study(
    "probed",
    "figures of two networks",
    "nowhere Table 8",
    (
        *(StudyRun(f"random-{figure}", FrozenTask(RANDOM, figure), "made") for figure in FIGURES),
        *(
            StudyRun(f"idmm-{figure}", FrozenTask(FIRST, figure), "made", baseline=f"random-{figure}")
            for figure in FIGURES
        ),
    ),
    "%",
    picture="curves",
)
KNN = replace(STUDY, runs=STUDY.runs[:1])


@pytest.fixture
def trained(monkeypatch):
    """List the calls of `pretrain`."""
    calls, function = [], pretrain_config.pretrain

    def call(config):
        calls.append(config)
        return function(config)

    monkeypatch.setattr(pretrain_config, "pretrain", call)
    return calls


def test_figures_of_one_network_share_its_training(data, tmp_path, trained):
    outcome = reproduce(STUDY, data)
    assert outcome.failed == ()
    assert len(trained) == 1
    rows = {row["run"]: row for row in outcome.results["rows"]}
    assert len(rows) == 12
    train, test = (
        hash_content(open_data(f"train={data}/made/{split}", val="none").train) for split in ("train", "test")
    )
    for name, row in rows.items():
        without_train = name in ("random-correspondence", "random-distance", "random-matching")
        assert row["data_hashes"] == {"test": test} | ({} if without_train else {"train": train})
        assert all(stage["curves"]["loss"]["epoch"] == [1, 2, 3] for stage in row.get("stages", []))
    (stage,) = (tmp_path / "runs" / "stages").glob("pretrain-*")
    assert [rows[f"idmm-{figure}"]["stages"][0]["shared"] for figure in FIGURES] == [False, *[True] * 5]
    train, test = (f"{data}/made/{split}" for split in ("train", "test"))
    for figure in FIGURES[:3]:
        found = evaluate_probes(EvaluationConfig(str(stage), f"train={train},test={test}", probes=(figure,)))
        assert rows[f"idmm-{figure}"]["value"] == pytest.approx(100 * found["probes"][figure]["value"], abs=1e-3)
        assert rows[f"idmm-{figure}"]["chosen"] == found["probes"][figure]["chosen"]
    again = measure_correspondence(load(stage), list_sources(test))
    assert rows["idmm-correspondence"]["value"] == pytest.approx(100 * again.accuracy, abs=1e-3)
    assert rows["idmm-distance"]["value"] == pytest.approx(again.distance, abs=1e-3)
    assert rows["idmm-distance"]["correspondence"] == rows["idmm-correspondence"]["value"]
    assert rows["idmm-knn"]["stages"][0]["watched"].keys() >= {"features/spread", "features/effective_rank"}
    assert 0 < rows["idmm-matching"]["chance"] <= 100
    assert 0 <= rows["idmm-matching"]["value"] <= 100
    folder = tmp_path / "runs" / "probed" / "idmm-distance-seed0"
    assert [line["why"] for line in lines(folder / "test-openings.jsonl")] == ["distance of regions"]
    assert rows["idmm-knn"]["curves"]["knn"]["epoch"] == [3]
    assert Image.open(outcome.picture).width > 300  # k-NN by epoch
    assert all(row["environment"]["commit"] == "abc123" for row in rows.values())


def test_the_machine_is_the_judges_and_that_of_the_training_stands_with_the_stage(data, tmp_path):
    reproduce(STUDY, data, only=("idmm-knn",))
    (about,) = (tmp_path / "runs" / "stages").glob("pretrain-*/environment.json")
    write_json(about, read(about) | {"commit": "before", "gpu": "a GPU"})
    rows = {row["run"]: row for row in reproduce(STUDY, data, only=("idmm-logistic",)).results["rows"]}
    found = rows["idmm-logistic"]
    assert (found["environment"]["commit"], found["environment"]["gpu"]) == ("abc123", None)
    assert (found["stages"][0]["commit"], found["stages"][0]["gpu"]) == ("before", "a GPU")


def test_a_part_of_the_images_is_said(data, tmp_path, monkeypatch):
    """Record the images of the probe and of its evaluation, not those the network was trained on."""
    monkeypatch.setitem(datasets.DATASETS, "made", datasets.StudyDataset("made images", 1000, 50))
    make_folder(tmp_path / "data" / "pool", each=2, split="train")
    runs = (
        StudyRun("random-knn", FrozenTask(RANDOM, "knn"), "made"),
        StudyRun("random-distance", FrozenTask(RANDOM, "distance"), "made"),
        StudyRun("idmm-knn", FrozenTask(FIRST, "knn"), "made", pretrain_data="pool"),
    )
    rows = reproduce(replace(STUDY, runs=runs), data).results["rows"]
    both = "12 training images, not 1,000; 6 test images, not 50"
    assert [row["caution"] for row in rows] == [both, "6 test images, not 50", both]
    monkeypatch.setitem(datasets.DATASETS, "made", datasets.StudyDataset("made images", 12, 6))
    again = reproduce(replace(STUDY, name="whole", runs=runs), data).results["rows"]
    assert not any("caution" in row for row in again)


def test_what_was_asked_once_is_not_asked_again(data, tmp_path, trained, monkeypatch):
    before = reproduce(KNN, data).results["rows"]
    (tmp_path / "results" / "probed.json").unlink()
    monkeypatch.setattr(probing, "_save_network", lambda *a: pytest.fail("made again"))
    after = reproduce(KNN, data).results["rows"]
    assert [row["value"] for row in before] == [row["value"] for row in after]


def test_random_weights_are_those_of_the_seed_and_weights_those_of_the_file(data, tmp_path):
    def weights(folder: Path) -> torch.Tensor:
        return load_file(folder / "model.safetensors")["patch_embed.proj.weight"]

    reproduce(KNN, data, seeds=2)
    stages = tmp_path / "runs" / "stages"
    first, second = (weights(stages / f"given-vit_nano_patch4_32-8-random-seed{seed}") for seed in (0, 1))
    assert not torch.equal(first, second)
    place = Path(data) / "weights" / "vit_nano_patch4_32.safetensors"
    place.parent.mkdir()
    (stages / "given-vit_nano_patch4_32-8-random-seed1" / "model.safetensors").rename(place)
    given = StudyRun("given", FrozenTask(RANDOM, "knn"), "made", weights="vit_nano_patch4_32")
    outcome = reproduce(replace(STUDY, name="given", runs=(given,)), data)
    assert outcome.failed == ()
    assert torch.equal(weights(stages / "given-vit_nano_patch4_32-8-vit_nano_patch4_32"), second)


def test_what_the_watcher_says_is_noted(data, tmp_path, monkeypatch):
    monkeypatch.setattr(collapse, "GRACE_STEPS", 0)
    monkeypatch.setattr(collapse, "find_symptoms", lambda *a: [collapse.Symptom("flat", 0.0, "all is flat", "nothing")])
    watched = FrozenTask(replace(FIRST, watch_every=1, on_collapse="warn"), "knn")
    outcome = reproduce(replace(STUDY, runs=(StudyRun("watched", watched, "made"),)), data)
    (row,) = outcome.results["rows"]
    (words,) = row["stages"][0]["warnings"]
    assert words.startswith("Epoch 3: this run has collapsed. Since epoch 1 all is flat.")
    assert words in render_results(tmp_path / "results")


def test_a_pace_beside_a_figure(data, monkeypatch):
    asked = []
    monkeypatch.setattr(
        costs.ThroughputTask, "__call__", lambda self, context: asked.append(self.backbone) or {"value": 321}
    )
    paced = StudyRun("paced", FrozenTask(RANDOM, "knn", paced=True), "made", paper=50.0)
    outcome = reproduce(replace(STUDY, name="paced", runs=(paced,), picture="scatter"), data)
    (row,) = outcome.results["rows"]
    assert (row["images_per_second"], asked) == (321, ["vit_nano_patch4_32"])
    assert Image.open(outcome.picture).width > 800  # pace and parameters


@pytest.fixture
def two_sets(tmp_path, monkeypatch):
    """A table of two datasets, of which one is scored by class."""
    kept = {name: replace(ENTRIES[name], tables=("esvit-t10",)) for name in ("cifar10", "pets")}
    for name in list(ENTRIES):
        monkeypatch.setitem(ENTRIES, name, kept.get(name, replace(ENTRIES[name], tables=())))
    for name in kept:
        for i, split in enumerate(("train", "test")):
            make_folder(tmp_path / "data" / name, each=6, split=split, first=50 * i)
        monkeypatch.setitem(datasets.DATASETS, name, datasets.StudyDataset(name, 18, 18))
    return str(tmp_path / "data")


def suite_study() -> Study:
    both = ("cifar10", "pets")
    return Study(
        "averaged",
        "two datasets",
        "nowhere Figure 3",
        (
            StudyRun("base", SuiteMeanTask(RANDOM), others=both),
            StudyRun("idmm", SuiteMeanTask(FIRST), pretrain_data="cifar10", baseline="base", others=both, paper=50.0),
        ),
        "mean, %",
        picture="bars",
    )


def test_the_mean_of_a_suite(two_sets, tmp_path):
    outcome = reproduce(suite_study(), two_sets)
    assert outcome.failed == ()
    base, idmm = outcome.results["rows"]
    for row in (base, idmm):
        assert set(row["each"]) == {"cifar10", "pets"}
        assert row["value"] == pytest.approx(math.fsum(row["each"].values()) / 2, abs=1e-3)
        assert {"cifar10/train", "cifar10/test", "pets/train", "pets/test"} <= row["data_hashes"].keys()
    assert Image.open(outcome.picture).width > 300
    ahead = sum(idmm["each"][name] > base["each"][name] for name in base["each"])
    assert f"ahead on {ahead} of 2" in render_results(tmp_path / "results")


def test_a_mean_without_one_of_them_is_none(two_sets, tmp_path):
    (tmp_path / "data" / "pets").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="pets"):
        reproduce(suite_study(), two_sets)
    with pytest.raises(RunAborted, match="pets"):
        SuiteMeanTask(RANDOM)(RunContext(tmp_path / "out", folder=Path(two_sets), stages=tmp_path / "stages"))
