"""A run that two tables share is measured once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.made_runs import read
from vitling.papers.lines import make_lines
from vitling.papers.reproduce import reproduce
from vitling.papers.study import RunContext, Study, StudyRun

pytestmark = pytest.mark.usefixtures("elsewhere")


@dataclass(frozen=True)
class Rated:
    rate: float
    begun: list[Any]

    @property
    def settings(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def __call__(self, context: RunContext) -> dict[str, Any]:
        self.begun.append((context.out.name, context.seed))
        return {
            "seconds": 60.0,
            "value": 100 * self.rate + context.seed,
            "stages": [{"stage": "pretrain", "shared": False, "seconds": 60.0}],
        }


def study(name: str, begun: list[Any], unit: str = "top-1, %", **rates: float) -> Study:
    return Study(
        name, "a table", "nowhere", tuple(StudyRun(run, Rated(rate, begun)) for run, rate in rates.items()), unit
    )


def test_the_same_run_of_another_table_is_taken_over(capsys):
    begun: list[Any] = []
    reproduce(study("first", begun, a=0.1, b=0.2), seeds=2)
    begun.clear()
    outcome = reproduce(study("second", begun, same=0.2, other=0.3), seeds=3)
    assert begun == [("other-seed0", 0), ("other-seed1", 1), ("same-seed2", 2), ("other-seed2", 2)]
    assert "same, seed 1, is measured as b of first." in capsys.readouterr().err
    rows = {(row["run"], row["seed"]): row for row in outcome.results["rows"]}
    assert [rows["same", seed]["value"] for seed in range(3)] == [20.0, 21.0, 22.0]
    taken, own = rows["same", 0], rows["same", 2]
    assert (taken["minutes"], taken["origin"]) == (0.0, "measured as b of first")
    assert taken["stages"][0]["shared"]
    assert "origin" not in own
    assert "measured as b of first" in make_lines(outcome.results)[0].note
    assert [row["run"] for row in read(Path("results/first.json"))["rows"]] == ["a", "a", "b", "b"]


def test_not_what_counts_something_else_nor_a_trial_nor_at_second_hand():
    begun: list[Any] = []
    reproduce(study("first", begun, a=0.1))
    reproduce(study("seconds", begun, "seconds", a=0.1))
    assert len(begun) == 2
    reproduce(study("trial", begun, a=0.1), epochs=1)
    assert len(begun) == 3
    reproduce(study("second", begun, same=0.1))
    Path("results/first.json").unlink()
    reproduce(study("third", begun, third=0.1))
    assert len(begun) == 4


def test_one_that_stopped_or_failed_is_not_a_value():
    begun: list[Any] = []
    reproduce(study("first", begun, a=0.1))
    path = Path("results/first.json")
    path.write_text(path.read_text().replace('"value"', '"failed"'))
    reproduce(study("second", begun, same=0.1))
    assert begun == [("a-seed0", 0), ("same-seed0", 0)]


def test_not_what_has_a_but():
    begun: list[Any] = []
    reproduce(study("first", begun, a=0.1, b=0.2, c=0.3))
    path = Path("results/first.json")
    content = read(path)
    plain, cautious, passes = content["rows"]
    plain["at_once"] = 7
    cautious["caution"] = "1,020 training images, not 2,040"
    passes["stages"][0]["warnings"] = ["pretrain: each batch in 8 passes, for want of memory"]
    path.write_text(json.dumps(content))
    begun.clear()
    rows = reproduce(study("second", begun, a2=0.1, b2=0.2, c2=0.3)).results["rows"]
    assert [name for name, _ in begun] == ["b2-seed0", "c2-seed0"]
    assert "at_once" not in rows[0]


def test_files_of_others_beside_it_do_no_harm():
    begun: list[Any] = []
    Path("results").mkdir()
    for name, text in {"half": '{"study": "h', "list": "[1]", "bare": '{"study": "x", "unit": "top-1, %"}'}.items():
        Path(f"results/{name}.json").write_text(text)
    reproduce(study("first", begun, a=0.1))
    assert len(begun) == 1
