"""The papers' figures: each belongs to a run, and the file is part of the package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from vitling.papers import figures
from vitling.papers.figures import read_figures
from vitling.papers.idmm_recipes import COLUMNS
from vitling.papers.studies import all_studies, find_study

ROOT = Path(__file__).parents[2]
TOML = Path(figures.__file__).with_name("figures.toml")
BY_BACKBONE = ("esvit-t6", "esvit-t8")


def test_every_figure_belongs_to_a_run():
    """A misspelt name would leave a run without its figure."""
    studies = {study.name: study for study in all_studies()}
    tables = tomllib.loads(TOML.read_text())
    same = tables.pop("same-figures")
    assert same.keys() <= studies.keys() - tables.keys()
    assert set(same.values()) <= tables.keys()
    for name in tables:
        sharing = [name, *(study for study, other in same.items() if other == name)]
        papers = {run.name: run.paper for study in sharing for run in studies[study].runs}
        if name in BY_BACKBONE:
            assert list(papers.values()) == list(read_figures(name).values())
        else:
            assert read_figures(name).items() <= papers.items(), name


def test_a_name_stands_for_a_row(monkeypatch):
    table = {"columns": ["a", "b"], "net-{}-drloc": [1.5, 2], "alone": 3}
    monkeypatch.setattr(figures, "_read_tables", lambda: {"table": table, "same-figures": {"again": "table"}})
    assert read_figures("table") == {"net-a-drloc": 1.5, "net-b-drloc": 2, "alone": 3}
    assert read_figures("again") == read_figures("table")
    assert read_figures("other") == {}


def test_figures_that_are_repeated_agree():
    short, two, five = read_figures("idmm-200"), read_figures("idmm-t2"), read_figures("idmm-t5")
    for data in COLUMNS:
        for start in ("random", "idmm"):
            assert short[f"deit-tiny-{data}-{start}-200"] == two[f"deit-tiny-{data}-{start}"]
        assert short[f"pvtv2-b0-{data}-random-200"] == five[f"pvtv2-b0-random-to-{data}"]
        assert short[f"pvtv2-b0-{data}-idmm-200"] == five[f"pvtv2-b0-idmm-{data}-to-{data}"]
    for name, figure in read_figures("idmm-f4").items():
        assert figure == two[name.removesuffix("-800")]
    for name, figure in read_figures("esvit-f1").items():
        assert figure == read_figures("esvit-t1")[name.replace("-linear", "-both-linear")]
    three = read_figures("drloc-t3")
    for name, figure in read_figures("drloc-supp-f3").items():
        assert figure == three[name]
    for name, figure in read_figures("drloc-t3-causes").items():
        net, _, change = name.partition("-flowers102-")
        alone = ("batch128", "parts8", "group128", "gpus", "no-drop-path", "fp32")
        loss = "" if change in alone else "-drloc"
        assert figure == three[f"{net}-flowers102{loss}"]
    for name, figure in read_figures("idmm-200-causes").items():
        before_change = re.match(r".*?-(200|800)", name)
        assert figure == (short | read_figures("idmm-t3"))[before_change[0]]
    for name, figure in read_figures("idmm-t8-causes").items():
        assert figure == read_figures("idmm-t8")[name.removesuffix("-two-crops")]


def test_counts_stay_whole_numbers():
    assert all(isinstance(run.paper, int) for run in find_study("esvit-t10").runs)


def test_the_file_is_in_the_wheel():
    included = {Path(file.path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert TOML.resolve() in {path.resolve() for path in included}
