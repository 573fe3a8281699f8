"""Entries of the papers' datasets agree with the papers, with each other and with the docs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pages.datasets import MARK, render_page
from vitling.cli import run
from vitling.papers.datasets import ENTRIES
from vitling.papers.locations import DATASETS

DOCS = Path(__file__).parents[3] / "docs"
ESVIT = {  # EsViT, Table 10: classes, train, test, metric
    "food101": (102, 75_750, 25_250, "accuracy"),
    "cifar10": (10, 50_000, 10_000, "accuracy"),
    "cifar100": (100, 50_000, 10_000, "accuracy"),
    "sun397": (397, 19_850, 19_850, "accuracy"),
    "cars": (196, 8_144, 8_041, "accuracy"),
    "aircraft": (100, 6_667, 3_333, "mean per class"),
    "voc2007": (20, 5_011, 4_952, "11-point mAP"),
    "dtd": (47, 3_760, 1_880, "accuracy"),
    "pets": (37, 3_680, 3_669, "mean per class"),
    "caltech101": (102, 3_060, 6_084, "mean per class"),
    "flowers102": (102, 2_040, 6_149, "mean per class"),
    "mnist": (10, 60_000, 10_000, "accuracy"),
    "fer2013": (8, 32_298, 3_589, "accuracy"),
    "stl10": (10, 5_000, 8_000, "accuracy"),
    "gtsrb": (43, 26_728, 12_630, "accuracy"),
    "patchcamelyon": (2, 294_912, 32_768, "accuracy"),
    "ucf101": (101, 9_537, 3_783, "accuracy"),
    "hateful-memes": (2, 8_500, 500, "ROC-AUC"),
}
MISPRINTS = {"food101": "102 classes", "fer2013": "8 classes", "gtsrb": "26,728"}
DRLOC = {  # DRLoc, Table 1 (a): train, test, classes
    "imagenet100": (126_689, 5_000, 100),
    "cifar10": (50_000, 10_000, 10),
    "cifar100": (50_000, 10_000, 100),
    "flowers102": (2_040, 6_149, 102),
    "svhn": (73_257, 26_032, 10),
    "domainnet-clipart": (33_525, 14_604, 345),
    "domainnet-infograph": (36_023, 15_582, 345),
    "domainnet-painting": (50_416, 21_850, 345),
    "domainnet-quickdraw": (120_750, 51_750, 345),
    "domainnet-real": (120_906, 52_041, 345),
    "domainnet-sketch": (48_212, 20_916, 345),
}
IDMM = {  # IDMM, Table 1: classes, train, test
    "flowers102": (102, 2_040, 6_149),
    "pets": (37, 3_680, 3_669),
    "dtd": (47, 3_760, 1_880),
    "indoor67": (67, 5_360, 1_340),
    "cub": (200, 5_994, 5_794),
    "aircraft": (100, 6_667, 3_333),
    "cars": (196, 8_144, 8_041),
}


def of_table(table: str) -> set[str]:
    return {name for name, entry in ENTRIES.items() if table in entry.tables}


def test_numbers_are_those_of_the_papers_but_for_their_misprints():
    assert of_table("esvit-t10") == ESVIT.keys()
    assert of_table("drloc-t1a") == DRLOC.keys()
    assert of_table("idmm-t1") == IDMM.keys()
    assert of_table("esvit-t3") == {"imagenet1k", "imagenet22k", "webvision", "openimages"}
    for name, figures in ESVIT.items():
        entry = ENTRIES[name]
        same = (entry.classes, entry.trained_on, entry.test, entry.metric) == figures
        assert same != (name in MISPRINTS), name
    for name, words in MISPRINTS.items():
        assert any(words in note for note in ENTRIES[name].notes)
    for name, (train, test, classes) in DRLOC.items():
        assert (ENTRIES[name].trained_on, ENTRIES[name].test, ENTRIES[name].classes) == (train, test, classes)
    for name, (classes, train, test) in IDMM.items():
        assert (ENTRIES[name].classes, ENTRIES[name].trained_on, ENTRIES[name].test) == (classes, train, test)


def test_studies_have_the_same_numbers():
    for name, entry in ENTRIES.items():
        assert (DATASETS[name].train, DATASETS[name].test) == (entry.trained_on, entry.test)
    assert DATASETS.keys() - ENTRIES.keys() == {
        *("sin10k", "sin-total10k", "cifar100-10k", "camvid"),
        *("camvid-masks", "coco", "ade20k"),
    }


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_entries_are_complete(entry):
    assert all((entry.licence, entry.where, entry.cite, entry.title, entry.tables, entry.marks))
    assert entry.multi == (entry.metric == "11-point mAP")
    assert "http" not in f"{entry.where}{entry.licence}"
    module, _, function = entry.reader.partition(".")
    assert callable(getattr(importlib.import_module(f"vitling.papers.datasets.{module}"), function))


def test_the_page_is_that_of_the_entries():
    assert (DOCS / "datasets.md").read_text().partition(MARK)[2] == f"\n{render_page()}", "run `make datasets`"


def test_the_list(capsys):
    assert run(["list", "datasets"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ENTRIES)
    assert "CC BY-SA 4.0" in shown


def test_entries_need_neither_torch_nor_numpy():
    code = "import sys, vitling.papers.datasets; print('torch' in sys.modules, 'numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "False"]
