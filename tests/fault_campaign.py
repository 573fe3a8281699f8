"""Interrupt commands at all moments of their file operations, kill their workers, and write the counts to a file.

python -m tests.fault_campaign results/reliability.json
python -m tests.fault_campaign results/reliability.json --faults 20 --only train export

`--only` runs a part; its rows join those of other parts with the same limits.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from tests.fault_scenarios import Scenario, State, Trial, compare_outcomes, list_scenarios, prepare, record_states
from tests.faults import FAULTS, Fault
from tests.killed_workers import kill_workers, list_worker_scenarios
from vitling.files import lock_folder, write_json
from vitling.loading import read_json
from vitling.papers.datasets import register_readers
from vitling.training.rundir import describe_environment

WHAT = "Faults injected into file operations"


def run_scenario(
    scenario: Scenario, base: Path, kills: int | None = None, faults: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Try `kills` states that SIGKILL can leave and, for each other fault, `faults` moments; None: all of them.

    Return the counts and a description of each failure.
    """
    began, tried, failures = time.monotonic(), dict.fromkeys(FAULTS, 0), []
    with prepare(scenario, base) as prepared:
        expected, moments, states = record_states(scenario, prepared, base)
        for fault, at, before in _list_trials(len(moments), states, prepared, kills, faults):
            trial, covered = Trial(scenario, before, base / "here"), 1
            try:
                if fault == "SIGKILL":
                    covered = len(next(state.moments for state in states if state.folder == before))
                    trial.proceed()
                else:
                    trial.interrupt(fault, at)
                compare_outcomes(trial.read_outcome(), expected)
            except Exception:
                failures.append(f"{scenario.name}, {fault} at {at} ({moments[at]}): {traceback.format_exc(limit=-3)}")
            tried[fault] += covered
    counts = {"moments": len(moments), "states": len(states), "tried": tried, "failures": len(failures)}
    return counts | {"seconds": round(time.monotonic() - began)}, failures


def _list_trials(
    moments: int, states: list[State], prepared: Path, kills: int | None, faults: int | None
) -> Iterator[tuple[Fault, int, Path]]:
    """Yield the fault, its moment, and the folder to begin with: for a kill what it leaves, else what comes before."""
    for i in _spread(len(states), kills, 1, 2):
        yield "SIGKILL", states[i].moments[0], states[i].folder
    for part, fault in enumerate(FAULTS[1:], 1):
        for at in _spread(moments, faults, part, 4):
            yield fault, at, prepared


def _spread(count: int, wanted: int | None, part: int, parts: int) -> list[int]:
    """Return `wanted` of `count` numbers at equal distances, beginning after `part` of `parts` of a distance."""
    if wanted is None or wanted >= count:
        return list(range(count))
    return [int(count * (i + part / parts) / wanted) for i in range(wanted)]


def run_worker_scenario(name: str, base: Path, kills: int | None) -> tuple[dict[str, Any], list[str]]:
    began = time.monotonic()
    with chdir("."):  # it works in folders that are deleted
        counts, failures = kill_workers(
            list_worker_scenarios()[name], base, lambda moments: _spread(moments, kills, 1, 2)
        )
    return counts | {"seconds": round(time.monotonic() - began)}, failures


def describe_counts(results: dict[str, Any]) -> str:
    """Describe the counts of both campaigns in the words of docs/reliability.md."""
    rows, hostile = results["rows"], results["hostile"]
    tried = [f"{sum(row['tried'].get(fault, 0) for row in rows):,} {fault}" for fault in FAULTS]
    moments, failures = (sum(row[key] for row in rows) for key in ("moments", "failures"))
    return (
        f"{len(rows)} commands, {moments:,} moments; tried {', '.join(tried)}; {failures} failures. "
        f"{len(hostile['rows'])} kinds of file, {hostile['inputs']:,} inputs; {hostile['tracebacks']} tracebacks."
    )


def write_row(out: Path, row: dict[str, Any], limits: str, environment: dict[str, Any]) -> None:
    """Add a row to the file, with its commit; those that were made with other limits are dropped."""
    with lock_folder(out.parent):  # several parts may run at once
        known = read_json(out) if out.exists() else {}
        before = known.get("rows", []) if known.get("limits") == limits else []
        rows = [old for old in before if old["scenario"] != row["scenario"]]
        order = [*list_scenarios(), *list_worker_scenarios()]
        rows = sorted([*rows, row | {"commit": environment["commit"]}], key=lambda one: order.index(one["scenario"]))
        command = name_command(out.name, limits, [one["scenario"] for one in rows])
        about = {"what": WHAT, "command": command, "limits": limits, "environment": environment | {"command": command}}
        write_json(out, known | about | {"rows": rows})


def name_command(file: str, limits: str, present: list[str]) -> str:
    """Return the command that makes these rows again, with --only if they are a part of all."""
    part = [] if len(present) == len([*list_scenarios(), *list_worker_scenarios()]) else ["--only", *present]
    return shlex.join(["python", "-m", "tests.fault_campaign", f"results/{file}", *limits.split(), *part])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, help="states that SIGKILL leaves; all if it is left out")
    parser.add_argument("--faults", type=int, help="moments of each other fault; all if it is left out")
    parser.add_argument("--worker-kills", type=int, help="moments at which a worker is killed; all if it is left out")
    names = [*list_scenarios(), *list_worker_scenarios()]
    parser.add_argument("--only", nargs="*", default=names, choices=names, metavar="NAME", help=", ".join(names))
    arguments = parser.parse_args()
    register_readers()
    out, failed, environment = arguments.out.absolute(), [], describe_environment()
    given = {flag: getattr(arguments, flag.replace("-", "_")) for flag in ("kills", "faults", "worker-kills")}
    limits = " ".join(f"--{flag} {n}" for flag, n in given.items() if n)
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            base = Path(folder) / "work"
            if name in list_scenarios():
                counts, failures = run_scenario(list_scenarios()[name], base, arguments.kills, arguments.faults)
            else:
                counts, failures = run_worker_scenario(name, base, arguments.worker_kills)
        print(name, counts, *failures, sep="\n", flush=True)
        failed += failures
        write_row(out, {"scenario": name, **counts}, limits, environment)
    if failed:
        raise SystemExit(f"{len(failed)} failed")


if __name__ == "__main__":
    main()
