"""Several processes that work at one study."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_folder
from tests.runs import read
from vitling.cli import run
from vitling.console import Log
from vitling.errors import Interrupted, UserError
from vitling.files import claimed, locked
from vitling.recipes.studies.at_once import helped, same_command
from vitling.recipes.studies.reproduce import reproduce
from vitling.recipes.studies.study import Run, Start, Study

pytestmark = pytest.mark.usefixtures("elsewhere")


@dataclass(frozen=True)
class Meeting:
    """Work that ends when as many are at work as the barrier wants."""

    barrier: threading.Barrier
    begun: list[str]
    problem: Exception | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"meets": "others"}

    def __call__(self, start: Start) -> dict[str, Any]:
        self.begun.append(start.out.name)
        self.barrier.wait(30)
        if self.problem:
            raise self.problem
        return {"value": 1.0}


def study(names: str, at_once: int, begun: list[str], problem: Exception | None = None) -> Study:
    barrier = threading.Barrier(at_once)
    return Study("met", "numbers", "nowhere", tuple(Run(name, Meeting(barrier, begun, problem)) for name in names))


@pytest.mark.parametrize("problem", [None, UserError("It cannot be done.")])
def test_two_share_the_runs_and_do_none_twice(problem):
    """Neither is told what the other does. One that has failed is not tried again by the other."""
    begun: list[str] = []
    shared = study("abcd", 2, begun, problem)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: reproduce(shared), range(2)))
    assert sorted(begun) == ["a-seed0", "b-seed0", "c-seed0", "d-seed0"]
    assert [row["run"] for row in read(Path("results/met.json"))["rows"]] == list("abcd")
    failures = {name for outcome in outcomes for name in outcome.failed}
    assert failures == ({f"{name}, seed 0" for name in "abcd"} if problem else set())


def test_what_another_works_at_is_left_to_it(capsys):
    begun: list[str] = []
    with claimed("runs/met/a-seed0"):
        outcome = reproduce(study("ab", 1, begun))
    assert begun == ["b-seed0"]
    assert [row["run"] for row in outcome.results["rows"]] == ["b"]
    assert "The last 1 of 2 runs are other processes'" in capsys.readouterr().err
    reproduce(study("ab", 1, begun))
    assert begun == ["b-seed0", "a-seed0"]


def test_a_claim_is_one_processs(tmp_path):
    with claimed(tmp_path) as first, claimed(tmp_path) as second:
        assert (first, second) == (True, False)
    with claimed(tmp_path) as again:
        assert again
    with locked(tmp_path), claimed(tmp_path) as other:
        assert not other


def test_more_processes_on_the_command_line(tmp_path, capsys):
    for split in ("train", "test"):
        make_folder(tmp_path / "data" / "flowers102", each=2, split=split)
    flags = ["--data", str(tmp_path / "data"), "--only", "flowers102", "--seeds", "2", "--at-once", "3"]
    assert run(["reproduce", "idmm-t1", *flags]) == 0
    rows = read(Path("results/idmm-t1.json"))["rows"]
    assert [(row["run"], row["seed"], row["value"]) for row in rows] == [
        (f"flowers102-{split}", seed, 6) for split in ("train", "test") for seed in (0, 1)
    ]
    said = capsys.readouterr()
    assert "2 more at once" in said.err
    assert "ended with" not in said.err
    assert "flowers102-train" in said.out


def test_the_command_of_the_others_is_for_one():
    words = same_command("idmm-t1", data="d", seeds=2, only=("a", "b"), minutes=None, epochs=None, runs_out="r")
    assert words[1:] == [
        *("-m", "vitling", "reproduce", "idmm-t1", "--data", "d", "--seeds", "2"),
        *("--only", "a", "b", "--runs-out", "r"),
    ]


def test_one_that_dies_is_named_and_one_that_goes_on_is_waited_for(tmp_path, capsys):
    with helped([sys.executable, "-c", "raise SystemExit('gone')"], 1, tmp_path, Log()):
        pass
    assert "A process ended with 1: gone" in capsys.readouterr().err
    with helped([sys.executable, "-c", "import time; time.sleep(1); print('late')"], 1, tmp_path, Log()):
        pass
    assert (tmp_path / "process2.log").read_text() == "late\n"


def test_they_end_with_the_one_that_started_them(tmp_path):
    waits = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *s: sys.exit(print('saved'))); "
    waits += "print('here', flush=True); time.sleep(60)"

    def stop() -> None:
        with helped([sys.executable, "-c", waits], 1, tmp_path, Log()):
            while "here" not in (tmp_path / "process2.log").read_text():
                pass
            raise Interrupted("Stopped.", 143)

    with pytest.raises(Interrupted):
        stop()
    assert (tmp_path / "process2.log").read_text() == "here\nsaved\n"


def test_less_than_one_is_refused():
    with pytest.raises(UserError, match="--at-once must be at least 1"):
        reproduce(study("a", 1, []), at_once=0)
