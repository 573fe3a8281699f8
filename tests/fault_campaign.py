"""Interrupt commands at all moments of their file operations, and write the counts to a file.

python -m tests.fault_campaign results/reliability.json --every 1
python -m tests.fault_campaign results/reliability.json --every 20 --only train export
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fault_scenarios import Scenario, Trial, list_scenarios, prepare, record_states
from tests.faults import FAULTS, Fault
from vitling.files import lock_folder, read_json, write_json
from vitling.papers.datasets import register_readers
from vitling.training.rundir import describe_environment


def run_scenario(scenario: Scenario, base: Path, kills: int, faults: int) -> tuple[dict[str, Any], list[str]]:
    """Try every `kills`-th state that SIGKILL can leave and every `faults`-th moment for the other faults.

    Return the counts and a description of each failure.
    """
    began, tried, failures = time.monotonic(), dict.fromkeys(FAULTS, 0), []
    with prepare(scenario, base) as prepared:
        expected, moments, states = record_states(scenario, prepared, base)
        for i, (fault, at, before) in enumerate(_list_trials(len(moments), states, prepared, kills, faults)):
            trial, covered = Trial(scenario, before, base / f"trial{i}"), 1
            try:
                if fault == "SIGKILL":
                    covered = len(next(state.moments for state in states if state.folder == before))
                    trial.proceed()
                else:
                    trial.interrupt(fault, at)
                _compare(trial.read_outcome(), expected)
            except Exception:
                failures.append(f"{scenario.name}, {fault} at {at} ({moments[at]}): {traceback.format_exc(limit=-3)}")
            tried[fault] += covered
            shutil.rmtree(trial.folder)
    counts = {"moments": len(moments), "states": len(states), "tried": tried, "failures": len(failures)}
    return counts | {"seconds": round(time.monotonic() - began)}, failures


def _list_trials(
    moments: int, states: list[Any], prepared: Path, kills: int, faults: int
) -> Iterator[tuple[Fault, int, Path]]:
    """Yield the fault, its moment, and the folder to begin with: for a kill what it leaves, else what comes before."""
    for state in states[::kills]:
        yield "SIGKILL", state.moments[0], state.folder
    for offset, fault in enumerate(FAULTS[1:]):
        for at in range(offset * faults // 3, moments, faults):
            yield fault, at, prepared


def _compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, value in expected.items():
        assert found[name] == value, f"{name} differs: {str(found[name])[:500]} is not {str(value)[:500]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--every", type=int, default=1, help="moments per trial, for faults other than SIGKILL")
    parser.add_argument("--kills", type=int, default=1, help="states per trial, for SIGKILL")
    parser.add_argument("--only", nargs="*", default=list(list_scenarios()))
    arguments = parser.parse_args()
    register_readers()
    out, failed = arguments.out.absolute(), []
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            counts, failures = run_scenario(
                list_scenarios()[name], Path(folder) / "work", arguments.kills, arguments.every
            )
        print(name, counts, *failures, sep="\n", flush=True)
        failed += failures
        with lock_folder(out.parent):  # several scenarios may run at once
            known = read_json(out) if out.exists() else {}
            scenarios = known.get("faults", {}).get("scenarios", {}) | {name: counts}
            command = f"python -m tests.fault_campaign results/{out.name} --every {arguments.every}"
            about = {"command": command, "environment": describe_environment() | {"command": command}}
            write_json(out, known | {"faults": about | {"scenarios": scenarios}})
    if failed:
        raise SystemExit(f"{len(failed)} failed")


if __name__ == "__main__":
    main()
