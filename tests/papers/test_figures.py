"""The papers' figures: each belongs to a run, and the file is part of the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from vitling.papers import figures
from vitling.papers.figures import read_figures
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
        papers = {run.name: run.paper for run in studies[name].runs}
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


def test_counts_stay_whole_numbers():
    assert all(isinstance(run.paper, int) for run in find_study("esvit-t10").runs)


def test_the_file_is_in_the_wheel():
    included = {Path(file.path) for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert TOML.resolve() in {path.resolve() for path in included}
