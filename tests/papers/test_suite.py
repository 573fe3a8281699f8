"""`vitling suite`: what is there is evaluated, what is not is named, and nothing that was finished is done again."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import make_folder
from tests.made_runs import read, refused
from tests.papers.datasets import copies
from tests.tiny import tiny_backbone
from vitling.cli import run
from vitling.data.config import DataConfig
from vitling.errors import UserError
from vitling.evaluation.bundle import save_bundle
from vitling.evaluation.meta import BundleMeta
from vitling.papers.suite import suite
from vitling.papers.suite.config import SuiteConfig
from vitling.papers.suite.table import PAPER, Cell, make_table, make_tables, summarise
from vitling.runs import probes

OTHERWISE = DataConfig(max_pixels=10_000)


def model(folder: Path, seed: int = 0) -> Path:
    import torch

    torch.manual_seed(seed)
    meta = BundleMeta("none", (), 16, 16, (0.5,) * 3, (0.2,) * 3)
    save_bundle(folder, tiny_backbone(), None, meta)
    return folder


@pytest.fixture
def root(tmp_path) -> Path:
    """Three datasets as distributed and one as `vitling reproduce` takes it."""
    root = tmp_path / "data"
    root.mkdir()
    for name in ("flowers102", "hateful-memes", "voc2007"):
        copies.MAKERS[name](root)
    for split, each in (("train", 4), ("test", 2)):
        make_folder(root / "cub", each=each, split=split, first=0 if split == "train" else 50)
    return root


def config(root: Path, *runs: Path, **changes) -> SuiteConfig:
    out = str(root.parent / "out")
    return SuiteConfig(tuple(map(str, runs)), str(root), **{"out": out, "device": "cpu", "probes": ("knn",), **changes})


class Counter:
    """Counts the work of a suite."""

    def __init__(self, monkeypatch):
        self.probed, self.embedded = [], []
        knn, embed = probes.PROBES["knn"], suite._compute_features

        def counting_probe(bench, log):
            self.probed.append(len(bench.parts["evaluated"].labels))
            return knn(bench, log)

        def counting_embed(place, *others):
            self.embedded.append(place.entry.name)
            return embed(place, *others)

        monkeypatch.setitem(probes.PROBES, "knn", counting_probe)
        monkeypatch.setattr(suite, "_compute_features", counting_embed)


def test_what_is_there_and_what_is_not(root, tmp_path, capsys):
    first, second = model(tmp_path / "first"), model(tmp_path / "second", 1)
    command = ["suite", str(first), str(second), "--data-root", str(root), "--out", str(tmp_path / "out")]
    assert run([*command, "--device", "cpu", "--with", "knn"]) == 0
    shown = capsys.readouterr()
    assert "Skipped" in shown.err
    assert "food101, cifar10" in shown.err
    for word in ("flowers102*", "mean per class", "ROC-AUC", "11-point mAP", "average", "wins"):
        assert word in shown.out
    assert "* flowers102: 12 training images, not 2,040" in shown.out
    written = read(tmp_path / "out/suite.json")
    assert [row["data"] for row in written["rows"]] == ["voc2007", "flowers102", "hateful-memes", "cub"]
    assert len(written["averaged_over"]) == 4
    assert written["columns"][0]["wins"] is None
    assert 0 <= written["columns"][1]["wins"] <= 4


def test_probes_choose_by_the_metric_of_the_data_set(root, tmp_path):
    folder = model(tmp_path / "first")
    outcome = suite.run_suite(config(root, folder, only=("hateful-memes",), probes=("knn", "linear", "logistic")))
    assert [column["probe"] for column in outcome.summary["columns"]] == ["knn", "linear", "logistic"]
    (cell,) = (tmp_path / "out").glob("first-*/hateful-memes")
    assert read(cell / "linear.json")["chosen"]["lr"] > 0
    assert read(cell / "knn.json")["chosen"]["k"] in (10, 20)
    found = read(cell / "logistic.json")
    assert 0 <= found["validation"] <= 1  # an untrained network, and a handful of images
    assert 1e-6 <= found["chosen"]["C"] <= 1e6


def test_figures_are_those_of_the_probe(root, tmp_path):
    """By hand: features of train and val, the nearest vote, mean over the classes."""
    import torch

    from vitling.data import open as open_data
    from vitling.evaluation.bundle import load
    from vitling.evaluation.knn import knn_votes

    folder = model(tmp_path / "first")
    outcome = suite.run_suite(config(root, folder, only=("flowers102",)))
    network, splits = load(folder, device="cpu"), open_data(f"flowers102:{root}")
    parts = [splits.train, splits.val, splits.open_test("a test")]
    x = [torch.from_numpy(network.embed([root / "flowers-102/jpg" / key for key in part.keys])) for part in parts]
    bank, labels = torch.cat(x[:2]), torch.tensor([*parts[0].labels, *parts[1].labels])
    answers = knn_votes(bank, labels, x[2], (9,), 102)[9].argmax(dim=1).numpy()  # as many as train has
    recalls = [(answers == c)[parts[2].labels == c].mean() for c in range(3)]
    assert outcome.summary["rows"][0]["values"] == [pytest.approx(sum(recalls) / 3)]


def test_nothing_finished_is_done_again(root, tmp_path, monkeypatch):
    folder, counted = model(tmp_path / "first"), Counter(monkeypatch)
    first = suite.run_suite(config(root, folder))
    assert len(counted.probed) == len(counted.embedded) == 4
    again = suite.run_suite(config(root, folder))
    assert len(counted.probed) == 4
    assert again.summary == first.summary
    model(folder, seed=5)  # trained again in the same place: another network
    suite.run_suite(config(root, folder, only=("cub",)))
    assert len(counted.probed) == 5


def test_figures_of_other_images_are_not_taken_for_these(root, tmp_path, monkeypatch, capsys):
    """The same names and the same --out, but another copy; or the same one, read otherwise; or by a model that is told
    other statistics of the pixels."""
    folder, counted = model(tmp_path / "first"), Counter(monkeypatch)
    for _ in range(2):
        suite.run_suite(config(root, folder, only=("cub",)))
    assert len(counted.embedded) == 1
    shutil.copytree(root, tmp_path / "copy")
    suite.run_suite(config(tmp_path / "copy", folder, only=("cub",)))
    assert len(counted.embedded) == 2
    assert "with other images" in capsys.readouterr().err
    suite.run_suite(config(tmp_path / "copy", folder, only=("cub",), data=OTHERWISE))
    assert len(counted.embedded) == 3
    about = json.loads((folder / "config.json").read_text())
    about["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    (folder / "config.json").write_text(json.dumps(about))
    suite.run_suite(config(tmp_path / "copy", folder, only=("cub",), data=OTHERWISE))
    assert len(counted.embedded) == 4


def test_a_damaged_cell_is_measured_again(root, tmp_path, monkeypatch):
    folder, counted = model(tmp_path / "first"), Counter(monkeypatch)
    wanted = config(root, folder, only=("cub",))
    first = suite.run_suite(wanted)
    (path,) = Path(wanted.out).rglob("cub/*.json")
    path.write_text(path.read_text().replace('"evaluated"', '"judged"'))  # as earlier versions wrote it
    assert suite.run_suite(wanted).summary == first.summary
    assert len(counted.probed) == 2


def test_a_failed_probe_leaves_the_others(root, tmp_path, monkeypatch):
    folder, counted = model(tmp_path / "first"), Counter(monkeypatch)

    def broken(bench, log):
        raise UserError("the probe is broken")

    monkeypatch.setitem(probes.PROBES, "broken", broken)
    for _ in range(2):
        outcome = suite.run_suite(config(root, folder, only=("cub",), probes=("knn", "broken")))
        assert list(outcome.failed) == [f"broken on cub of {folder}"]
    assert (len(counted.embedded), len(counted.probed)) == (2, 1)


def test_a_data_set_that_cannot_be_read_ends_nothing(root, tmp_path, capsys):
    folder = model(tmp_path / "first")
    (root / "flowers-102/imagelabels.mat").unlink()
    command = ["suite", str(folder), "--data-root", str(root), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert run([*command, "--with", "knn"]) == 2
    shown = capsys.readouterr()
    assert "flowers102 is skipped" in shown.err
    assert "imagelabels.mat" in shown.err
    assert "cub" in shown.out


STOPPED = """
import sys, time
from pathlib import Path
from vitling.cli import run
from vitling.runs import probes
from vitling.papers.suite import suite

diary, slow, command = Path(sys.argv[1]), sys.argv[2] == "slow", sys.argv[3:]
knn, embed = probes.PROBES["knn"], suite._compute_features

def note(line):
    with diary.open("a") as file:
        file.write(line + "\\n")

def noted_probe(bench, log):
    note(f"probe {len(bench.parts['evaluated'].labels)} {bench.classes}")
    if slow and bench.classes == 102:  # the second dataset
        note("waiting")
        time.sleep(60)
    return knn(bench, log)

def noted_embed(place, *others):
    note(f"embed {place.entry.name}")
    return embed(place, *others)

probes.PROBES["knn"], suite._compute_features = noted_probe, noted_embed
sys.exit(run(command))
"""


def test_a_suite_that_was_killed_repeats_nothing_that_was_finished(root, tmp_path):
    folder, diary = model(tmp_path / "first"), tmp_path / "diary.txt"
    flags = ["--data-root", str(root), "--out", str(tmp_path / "out"), "--device", "cpu", "--with", "knn"]

    def context(pace: str) -> subprocess.Popen:
        command = [sys.executable, "-c", STOPPED, str(diary), pace, "suite", str(folder), *flags]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    stopped = context("slow")
    deadline = time.monotonic() + 100
    while not diary.exists() or "waiting" not in diary.read_text():
        assert stopped.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    assert "to continue" in stopped.communicate(timeout=60)[1]
    assert stopped.returncode == 143
    before = diary.read_text().splitlines()
    assert before == ["embed voc2007", "probe 6 20", "embed flowers102", "probe 6 102", "waiting"]
    again = context("quick")
    again.communicate(timeout=100)
    assert again.returncode == 0
    after = diary.read_text().splitlines()[len(before) :]
    assert after == ["embed flowers102", "probe 6 102", "embed hateful-memes", "probe 4 2", "embed cub", "probe 6 3"]
    assert len(read(tmp_path / "out/suite.json")["rows"]) == 4


def test_wrong_input(root, tmp_path, capsys):
    folder = model(tmp_path / "first")
    assert "does not exist" in refused(capsys, "suite", folder, "--data-root", tmp_path / "nowhere")
    assert "Did you mean flowers102" in refused(capsys, "suite", folder, "--data-root", root, "--only", "flowers")
    assert "logistic" in refused(capsys, "suite", folder, "--data-root", root, "--with", "magic")
    assert "has none of food101" in refused(capsys, "suite", folder, "--data-root", root, "--only", "food101")
    assert "Missing: RUN." in refused(capsys, "suite", "--data-root", root)
    assert "does not exist" in refused(capsys, "suite", tmp_path / "no-run", "--data-root", root)


def cell(run: str, data: str, value: float, probe: str = "knn") -> Cell:
    about = {"images": {"train": 1_020, "validation": 1_020, "evaluated": 6_149}}
    return Cell(run, data, probe, "accuracy", value, about)


def test_average_and_wins():
    """The average is over what all have; wins are counted over the first, as EsViT does."""
    wanted = SuiteConfig(("sup", "ours"), "data", probes=("knn",))
    cells = [cell("sup", "flowers102", 0.5), cell("ours", "flowers102", 0.7), cell("sup", "pets", 0.6)]
    cells += [cell("ours", "dtd", 0.2), cell("sup", "cars", 0.4), cell("ours", "cars", 0.4)]
    found = summarise(cells, wanted)
    assert found["averaged_over"] == ["cars", "flowers102"]
    assert [column["average"] for column in found["columns"]] == pytest.approx([0.45, 0.55])
    assert [column["wins"] for column in found["columns"]] == [None, 1]
    notes = {row["data"]: row["notes"] for row in found["rows"]}
    assert notes["flowers102"] == []
    low, high = next(row["intervals"][0] for row in found["rows"] if row["data"] == "flowers102")
    assert 0.48 < low < 0.5 < high < 0.52
    assert "50.0 (49-51)" in list(make_table(found).columns[2].cells)
    assert Cell("sup", "pets", "knn", "mean per class", 0.6, cells[0].about).images is None
    assert notes["pets"] == ["2,040 training images, not 3,680", "6,149 test images, not 3,669"]
    assert json.dumps(found)
    assert len(make_table(found).columns) == 4
    logistic = found | {"columns": [column | {"probe": "logistic"} for column in found["columns"]]}
    assert len(make_table(logistic).columns) == 6  # the paper's figures are of this probe
    assert len(make_table(logistic | {"table": "idmm-t1"}).columns) == 4


def test_a_table_that_is_too_wide_is_one_for_each_probe():
    runs, probes = ("runs/random-start", "runs/after-idmm"), ("knn", "linear", "logistic")
    cells = [cell(run, "flowers102", 0.1234 + i / 2, probe) for i, run in enumerate(runs) for probe in probes]
    found = summarise(cells, SuiteConfig(runs, "data", probes=probes))
    (whole,) = make_tables(found, Console(width=200))
    assert len(whole.columns) == 2 + 6 + 2
    narrow = Console(width=60, file=io.StringIO())
    parts = make_tables(found, narrow)
    assert [(part.title, len(part.columns)) for part in parts] == [("knn", 4), ("linear", 4), ("logistic", 6)]
    for part in parts:
        narrow.print(part)
    shown = narrow.file.getvalue()
    assert shown.count("12.3") == 2 * 3  # the rows and the averages
    assert "…" not in shown


def test_metrics_and_data_sets_of_a_table():
    idmm = SuiteConfig(("a",), "data", table="idmm-t1").entries()
    assert {entry.name for entry in idmm} == {"flowers102", "pets", "dtd", "indoor67", "cub", "aircraft", "cars"}
    assert {entry.metric_in("idmm-t1") for entry in idmm} == {"accuracy"}
    esvit = SuiteConfig(("a",), "data", table="esvit-t10").entries()
    assert [entry.name for entry in esvit] == list(PAPER)
    metrics = {entry.metric for entry in esvit}
    assert metrics == {"accuracy", "mean per class", "11-point mAP", "ROC-AUC"}
    assert sum(figures[0] for figures in PAPER.values()) / 18 == pytest.approx(77.29, abs=0.06)  # as printed
    assert sum(figures[1] for figures in PAPER.values()) / 18 == pytest.approx(80.99, abs=0.06)


@pytest.mark.parametrize(("name", "file"), [("mnist", "*train-images*"), ("patchcamelyon", "*test_y*")])
def test_a_file_that_is_something_else_ends_nothing(root, tmp_path, capsys, name, file):
    """A page that says `not found`, saved under the name of an archive."""
    copies.MAKERS[name](root)
    (broken,) = root.rglob(file)
    broken.write_bytes(b"<html>not found</html>")
    outcome = suite.run_suite(config(root, model(tmp_path / "first"), only=(name, "cub")))
    assert len(outcome.failed) == 1
    assert [row["data"] for row in outcome.summary["rows"]] == ["cub"]
    assert f"{name} is skipped" in capsys.readouterr().err
