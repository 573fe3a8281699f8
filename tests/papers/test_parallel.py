"""Several processes that work at one study."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import make_folder
from tests.made_runs import read
from vitling.cli import run
from vitling.console import Log
from vitling.errors import Interrupted, UserError
from vitling.files import lock_folder, try_lock_folder
from vitling.papers.ledger import Ledger
from vitling.papers.parallel import run_helpers
from vitling.papers.reproduce import _Job, _Session, reproduce
from vitling.papers.stages import StageRun
from vitling.papers.study import RunContext, Study, StudyRun
from vitling.settings.config import PretrainConfig

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

    def __call__(self, context: RunContext) -> dict[str, Any]:
        self.begun.append(context.out.name)
        self.barrier.wait(30)
        if self.problem:
            raise self.problem
        return {"value": 1.0}


def study(names: str, at_once: int, begun: list[str], problem: Exception | None = None) -> Study:
    barrier = threading.Barrier(at_once)
    return Study("met", "numbers", "nowhere", tuple(StudyRun(name, Meeting(barrier, begun, problem)) for name in names))


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
    with try_lock_folder("runs/met/a-seed0"):
        outcome = reproduce(study("ab", 1, begun))
    assert begun == ["b-seed0"]
    assert [row["run"] for row in outcome.results["rows"]] == ["b"]
    assert "Other processes work on the last 1 of 2 runs" in capsys.readouterr().err
    reproduce(study("ab", 1, begun))
    assert begun == ["b-seed0", "a-seed0"]


def test_a_claim_is_one_processs(tmp_path):
    with try_lock_folder(tmp_path) as first, try_lock_folder(tmp_path) as second:
        assert (first, second) == (True, False)
    with try_lock_folder(tmp_path) as again:
        assert again
    with lock_folder(tmp_path), try_lock_folder(tmp_path) as other:
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
    assert {row["at_once"] for row in rows} == {3}
    said = capsys.readouterr()
    assert "2 more at once" in said.err
    assert "ended with" not in said.err
    assert "flowers102-train" in said.out


def test_one_that_dies_is_named_and_one_that_goes_on_is_waited_for(tmp_path, capsys):
    with run_helpers([sys.executable, "-c", "raise SystemExit('gone')"], 1, tmp_path, Log()):
        pass
    assert "A process ended with 1: gone" in capsys.readouterr().err
    with run_helpers([sys.executable, "-c", "import time; time.sleep(1); print('late')"], 1, tmp_path, Log()):
        pass
    assert [said.read_text() for said in sorted(tmp_path.glob("process2-*"))] == ["late\n"]


def test_they_end_with_the_one_that_started_them(tmp_path):
    waits = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *s: sys.exit(print('saved'))); "
    waits += "print('here', flush=True); time.sleep(60)"

    def said() -> Path:
        return next(tmp_path.glob("process2-*"))

    def stop() -> None:
        with run_helpers([sys.executable, "-c", waits], 1, tmp_path, Log()):
            while "here" not in said().read_text():
                time.sleep(0.02)
            raise Interrupted("Stopped.", 143)

    with pytest.raises(Interrupted):
        stop()
    assert said().read_text() == "here\nsaved\n"


def test_a_run_that_would_wait_for_anothers_stage_comes_last(tmp_path):
    begun: list[str] = []

    @dataclass(frozen=True)
    class InStages(Meeting):
        def stages(self, context: RunContext) -> list[StageRun]:
            shared = tmp_path / ("one" if context.out.name[0] in "ab" else "other")
            return [StageRun("pretrain", PretrainConfig(out=str(shared)))]

    runs = tuple(StudyRun(name, InStages(threading.Barrier(1), begun)) for name in "abcd")
    with try_lock_folder(tmp_path / "one"):
        reproduce(Study("met", "numbers", "nowhere", runs))
    assert begun == ["c-seed0", "d-seed0", "a-seed0", "b-seed0"]


def test_what_a_killed_process_leaves_is_done(monkeypatch):
    """The other has it until it dies, when this one has nothing more to do."""
    begun: list[str] = []

    @contextmanager
    def run_helpers(command, others, folder, log):
        with try_lock_folder("runs/met/a-seed0"):
            yield

    monkeypatch.setattr("vitling.papers.reproduce.run_helpers", run_helpers)
    outcome = reproduce(study("ab", 1, begun), at_once=2)
    assert begun == ["b-seed0", "a-seed0"]
    assert len(outcome.results["rows"]) == 2


def test_what_another_has_stopped_goes_on_here():
    begun: list[str] = []

    class Once(Meeting):
        def __call__(self, context: RunContext) -> dict[str, Any]:
            if not begun:
                begun.append("stopped")
                raise Interrupted("Stopped.", 143)
            return super().__call__(context)

    two = Study("met", "numbers", "nowhere", tuple(StudyRun(name, Once(threading.Barrier(1), begun)) for name in "ab"))
    session = _Session(Ledger(Path("results/met.json"), two, None), {}, None, 1, Log())
    jobs = [_Job(one, RunContext(Path(f"runs/met/{one.name}-seed0"))) for one in two.runs]
    with pytest.raises(Interrupted):
        _Session(session.ledger, {}, None, 1, Log()).run_all(jobs)
    session.run_all(jobs)
    assert begun == ["stopped", "a-seed0", "b-seed0"]


def test_a_failure_that_repeats_itself_is_one_each_time():
    for _ in range(2):
        assert reproduce(study("a", 1, [], UserError("It cannot be done."))).failed == ("a, seed 0",)


def test_they_end_when_the_one_that_started_them_is_killed(tmp_path):
    waits = "from vitling.papers.helper import end_with_parent as end; import time; end(); "
    waits += "print('here', flush=True); time.sleep(60)"
    starts = "import sys, time; from pathlib import Path; from vitling.console import Log; "
    starts += "from vitling.papers.parallel import run_helpers\n"
    starts += f"with run_helpers([sys.executable, '-c', {waits!r}], 1, Path({str(tmp_path)!r}), Log()): time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", starts])
    try:
        while not (there := list(tmp_path.glob("process2-*"))) or "here" not in there[0].read_text():
            assert parent.poll() is None
            time.sleep(0.05)
        (helper,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    finally:
        parent.kill()
        parent.wait()
    for _ in range(200):
        if not Path(f"/proc/{helper}").exists() or "(zombie)" in Path(f"/proc/{helper}/status").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the helper goes on")


def test_less_than_one_is_refused():
    with pytest.raises(UserError, match="--at-once must be at least 1"):
        reproduce(study("a", 1, []), at_once=0)


def test_a_helper_opens_the_datasets_that_the_command_opens():
    """`frames:DIR` and `NAME:DIR` have to be registered in its process too."""
    code = (
        "import sys; from vitling.data.sources.schemes import READERS; from vitling.papers import helper\n"
        "helper.reproduce = lambda *words, **settings: sys.exit(' '.join(READERS))\n"
        "sys.argv[1:] = ['camvid-dense', '{\"only\": []}']; helper.main()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as helper:
        known = helper.stderr.read().decode().split()  # with its input open, as the parent keeps it
    assert {"frames", "flowers102"} <= set(known)
