"""docs/coverage.md: the runs that have been measured, and what the others lack."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.pages.coverage import cover, render
from vitling.papers.counting import CountTask
from vitling.papers.studies import all_studies
from vitling.papers.study import Study, StudyRun

ROOT = Path(__file__).parents[2]


def test_page_matches_the_results():
    page = (ROOT / "docs" / "coverage.md").read_text()
    assert page == render(ROOT / "results", all_studies()), "run `make results`"


def test_every_run_is_measured_possible_or_lacks_something(tmp_path):
    task = CountTask("train", 2)
    runs = (
        StudyRun("done", task, data="flowers102"),
        StudyRun("left", task, data="flowers102"),
        StudyRun("elsewhere", task, data="pets", pretrain_data="flowers102"),
        StudyRun("from-weights", task, data="flowers102", weights="swin"),
    )
    study = Study("small", "a table", "a paper", runs)
    environment = {"packages": {}, "commit": "abc"}
    row = {"run": "done", "seed": 0, "value": 1.0, "minutes": 3.0, "fingerprint": "x", "environment": environment}
    unfinished = {name: value for name, value in row.items() if name != "value"} | {"run": "left", "minutes": 90.0}
    about = {"study": "small", "title": "", "source": "", "unit": "%", "command": "", "runs_in_all": 4, "runs": []}
    (tmp_path / "small.json").write_text(json.dumps(about | {"rows": [row, unfinished]}))
    found = cover(study, tmp_path, {"flowers102"})
    assert (found.measured, found.possible) == (1, 1)
    assert found.missing == ("pets", "ImageNet weights")
    assert found.cells == ("`small`", "4", "1", "1", "pets, ImageNet weights")


def test_a_table_without_results(tmp_path):
    study = Study("new", "a table", "a paper", (StudyRun("left", CountTask("train", 2)),))
    assert cover(study, tmp_path, set()).cells == ("`new`", "1", "0", "1", "")
