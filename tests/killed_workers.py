"""Kill worker processes of a command, and see that the others say so, end, and lose nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fault_scenarios import NETWORK, QUIET, Scenario, Trial, compare_outcomes, make_data, prepare_sets
from tests.training.helpers import free_port

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class WorkerScenario:
    """A command with a worker process that is killed."""

    name: str
    words: Callable[[], list[str]]
    says: str  # the command, after the kill
    recovers: bool  # the command does the worker's work itself; otherwise it fails and is resumed
    prepare: Callable[[], None] = lambda: None

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        resume = [] if self.recovers or "DIE_AT" in variables or "COUNT" in variables else ["--resume"]
        environment = os.environ | variables | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        return subprocess.run([*self.words(), *resume], env=environment, capture_output=True, text=True, timeout=300)


def list_worker_scenarios() -> dict[str, WorkerScenario]:
    reproduce = ("reproduce", "tiny", "--data", "sets", "--runs-out", "runs", "--out", "results/tiny.json")
    train = ("train", "data", "--out", "runs/a", "--method", "supervised", "--val", "none", *NETWORK, *QUIET)
    tiny = ("-m", "tests.tiny_process")

    def start_torchrun() -> list[str]:
        run = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port())
        return [*map(str, run), *tiny, *train, "--epochs", "2", "--seeds", "2"]

    def start_study() -> list[str]:
        return [sys.executable, *tiny, *reproduce, "--at-once", "2"]

    scenarios = (
        WorkerScenario("reproduce --at-once 2, helper", start_study, "A process ended with -9", True, prepare_sets),
        WorkerScenario("torchrun train --seeds, rank 1", start_torchrun, "SIGKILL", False),
    )
    return {scenario.name: scenario for scenario in scenarios}


def kill_workers(
    scenario: WorkerScenario, base: Path, choose: Callable[[int], list[int]]
) -> tuple[dict[str, Any], list[str]]:
    """Kill the worker at the moments that `choose` picks of all; return the counts and what failed."""
    prepared, failures, tried = base / "prepared", list[str](), 0
    prepared.mkdir(parents=True)
    os.chdir(prepared)
    make_data()
    scenario.prepare()
    begin = Scenario(scenario.name, lambda: 0, lambda: 0)
    whole = Trial(begin, prepared, base / "here")
    ended = scenario.run(COUNT=str(base / "count"))
    assert ended.returncode == 0, ended.stderr
    expected, moments = _read_outcome(whole), int((base / "count").read_text())
    for at in choose(moments):
        trial = Trial(begin, prepared, base / "here")
        ended = scenario.run(DIE_AT=str(at))
        if scenario.recovers and ended.returncode == 0 and scenario.says not in ended.stderr:
            continue  # the other process was quicker, so that the worker never came to this moment
        tried += 1
        try:
            assert scenario.says in ended.stderr, ended.stderr
            assert (ended.returncode == 0) == scenario.recovers, ended.returncode
            if not scenario.recovers:
                again = scenario.run()
                assert again.returncode == 0, again.stderr
            compare_outcomes(_read_outcome(trial), expected)
        except AssertionError as problem:
            failures.append(f"{scenario.name}, SIGKILL at {at}: {str(problem)[-3000:]}")
    return {"moments": moments, "tried": {"SIGKILL": tried}, "failures": len(failures)}, failures


def _read_outcome(trial: Trial) -> dict[str, Any]:
    """Return what a command wrote, without the logs of its workers, whose names have numbers of processes."""
    return {name: content for name, content in trial.read_outcome().items() if "process2-of" not in name}
